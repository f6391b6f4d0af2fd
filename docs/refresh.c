/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a refreshable SavedModel over TensorFlow's C API: loads it, and applies the deltas that
 * standard input names, one a line. See docs/updating_a_live_server.md.
 *
 *   refresh LIBRARY EXPORT_DIR < names-of-deltas
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

/* The names of these tensors: saved_model_cli show --dir EXPORT_DIR --tag_set serve --all. */
static const char kDelta[] = "refresh/delta";
static const char kRefresh[] = "refresh/RecEstimator>ModelRefresh";

static void Check(const char* what, const TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

static void Deallocate(void* data, size_t size, void* arg) {
  (void)size;
  (void)arg;
  TF_StringDealloc(data);
}

/* Applies a delta and prints what it changed, or why it was refused: then nothing has changed. */
static void Refresh(TF_Session* session, TF_Graph* graph, const char* delta) {
  TF_Status* status = TF_NewStatus();
  TF_TString text;
  TF_StringInit(&text);
  TF_StringCopy(&text, delta, strlen(delta));
  TF_Tensor* input = TF_NewTensor(TF_STRING, NULL, 0, &text, sizeof(text), Deallocate, NULL);
  TF_Operation* op = TF_GraphOperationByName(graph, kRefresh);
  const TF_Output feed = {TF_GraphOperationByName(graph, kDelta), 0};
  const TF_Output fetches[] = {{op, 0}, {op, 1}, {op, 2}}; /* step, rows written, rows deleted */
  TF_Tensor* outputs[3] = {NULL, NULL, NULL};
  TF_SessionRun(session, NULL, &feed, &input, 1, fetches, outputs, 3, NULL, 0, NULL, status);
  if (TF_GetCode(status) == TF_OK) {
    long long numbers[3];
    for (int i = 0; i < 3; ++i) {
      numbers[i] = *(long long*)TF_TensorData(outputs[i]);
      TF_DeleteTensor(outputs[i]);
    }
    printf("step %lld, %lld rows written, %lld deleted\n", numbers[0], numbers[1], numbers[2]);
  } else {
    printf("refused: %s\n", TF_Message(status));
  }
  fflush(stdout);
  TF_DeleteTensor(input);
  TF_DeleteStatus(status);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: refresh LIBRARY EXPORT_DIR < names-of-deltas\n");
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  TF_LoadLibrary(argv[1], status);
  Check("the library", status);
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[2], tags, 1, graph, NULL, status);
  Check("the model", status);
  /* Here the threads of a server would call TF_SessionRun for requests, at the same time. */
  char line[4096];
  while (fgets(line, sizeof(line), stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    Refresh(session, graph, line);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
