/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a portable SavedModel over TensorFlow's C API alone. See docs/updating_a_live_server.md.
 *
 *   portable EXPORT_DIR INPUT OUTPUT KEY...
 *
 * INPUT (int64 [n]) and OUTPUT (float [n, …]) name ops of the model: saved_model_cli show --all.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tensorflow/c/c_api.h"

static void Check(const char* what, const TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

int main(int argc, char** argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: portable EXPORT_DIR INPUT OUTPUT KEY...\n");
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  Check("the model", status);
  const int64_t n = argc - 4;
  TF_Tensor* input = TF_AllocateTensor(TF_INT64, &n, 1, n * sizeof(int64_t));
  for (int i = 0; i < n; ++i) ((int64_t*)TF_TensorData(input))[i] = atoll(argv[4 + i]);
  const TF_Output feed = {TF_GraphOperationByName(graph, argv[2]), 0};
  const TF_Output fetch = {TF_GraphOperationByName(graph, argv[3]), 0};
  TF_Tensor* output = NULL;
  TF_SessionRun(session, NULL, &feed, &input, 1, &fetch, &output, 1, NULL, 0, NULL, status);
  Check("the request", status);
  const float* values = TF_TensorData(output);
  for (size_t i = 0; i < TF_TensorByteSize(output) / sizeof(float); ++i) printf("%g\n", values[i]);
  TF_DeleteTensor(output);
  TF_DeleteTensor(input);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
