/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows a training over TensorFlow's C API: serves the base that PublishHook wrote, applies the
 * deltas as they arrive, and changes over to a new base. See docs/updating_a_live_server.md.
 *
 *   refresh LIBRARY PUBLISHED_FOLDER INPUT OUTPUT KEY
 *
 * INPUT (int64 [n]) and OUTPUT (float [n, …]) name ops of the model: saved_model_cli show --all.
 * KEY stands for the requests of a server; the program prints what it reads after each change.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensorflow/c/c_api.h"

typedef struct {
  TF_Graph* graph;
  TF_Session* session;
} Model;

static void Check(const char* what, const TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

static void Load(const char* export_dir, TF_Status* status, Model* model) {
  const char* tags[] = {"serve"};
  TF_SessionOptions* options = TF_NewSessionOptions();
  model->graph = TF_NewGraph();
  model->session = TF_LoadSessionFromSavedModel(options, NULL, export_dir, tags, 1, model->graph,
                                                NULL, status);
  TF_DeleteSessionOptions(options);
  Check(export_dir, status);
}

static void Close(Model* model, TF_Status* status) {
  if (model->session == NULL) return;
  TF_DeleteSession(model->session, status);
  TF_DeleteGraph(model->graph);
}

/* Feeds one tensor, which it deletes, and fetches the first n outputs of an op. */
static void Run(const Model* model, const char* from, TF_Tensor* input, const char* to, int n,
                TF_Tensor** outputs, TF_Status* status) {
  const TF_Output feed = {TF_GraphOperationByName(model->graph, from), 0};
  TF_Output fetches[3];
  for (int i = 0; i < n; ++i) {
    fetches[i].oper = TF_GraphOperationByName(model->graph, to);
    fetches[i].index = i;
  }
  TF_SessionRun(model->session, NULL, &feed, &input, 1, fetches, outputs, n, NULL, 0, NULL, status);
  TF_DeleteTensor(input);
}

static void Deallocate(void* data, size_t size, void* arg) {
  (void)size;
  (void)arg;
  TF_StringDealloc(data);
}

/* Returns whether the model took the delta. If not, nothing has changed. */
static int Refresh(const Model* model, const char* delta, TF_Status* status) {
  TF_TString text;
  TF_StringInit(&text);
  TF_StringCopy(&text, delta, strlen(delta));
  TF_Tensor* input = TF_NewTensor(TF_STRING, NULL, 0, &text, sizeof(text), Deallocate, NULL);
  TF_Tensor* outputs[3]; /* step, rows written, rows deleted */
  Run(model, "refresh/delta", input, "refresh/RecEstimator>ModelRefresh", 3, outputs, status);
  if (TF_GetCode(status) != TF_OK) {
    printf("%s was refused: %s\n", delta, TF_Message(status));
    return 0;
  }
  long long numbers[3];
  for (int i = 0; i < 3; ++i) {
    numbers[i] = *(long long*)TF_TensorData(outputs[i]);
    TF_DeleteTensor(outputs[i]);
  }
  printf("step %lld, %lld rows written, %lld deleted", numbers[0], numbers[1], numbers[2]);
  return 1;
}

static void Answer(const Model* model, char** names, TF_Status* status) {
  const int64_t shape[] = {1};
  TF_Tensor* input = TF_AllocateTensor(TF_INT64, shape, 1, sizeof(int64_t));
  *(int64_t*)TF_TensorData(input) = atoll(names[2]);
  TF_Tensor* output;
  Run(model, names[0], input, names[1], 1, &output, status);
  Check("a request", status);
  printf("; key %s reads %g\n", names[2], *(float*)TF_TensorData(output));
  fflush(stdout);
  TF_DeleteTensor(output);
}

/* Copies the text of the next "key": "text" of the manifest; returns what follows, or NULL. */
static const char* Next(const char* manifest, const char* key, char text[256]) {
  char start[32];
  snprintf(start, sizeof(start), "\"%s\": \"", key);
  const char* found = strstr(manifest, start);
  if (found == NULL || sscanf(found + strlen(start), "%255[^\"]", text) != 1) return NULL;
  return found + strlen(start);
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: refresh LIBRARY PUBLISHED_FOLDER INPUT OUTPUT KEY\n");
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  TF_LoadLibrary(argv[1], status);
  Check("the library", status);
  Model model = {NULL, NULL};
  char path[4096], base[256] = "", name[256];
  int applied = 0; /* deltas of this base */
  static char manifest[1 << 20];
  for (;; sleep(1)) {
    snprintf(path, sizeof(path), "%s/manifest.json", argv[2]);
    FILE* file = fopen(path, "r");
    if (file == NULL) continue; /* Nothing is published yet. */
    manifest[fread(manifest, 1, sizeof(manifest) - 1, file)] = '\0';
    fclose(file);
    const char* at = Next(manifest, "base", name);
    if (at == NULL) continue;
    if (strcmp(name, base) != 0) {
      Close(&model, status); /* A server lets its running requests end before. */
      snprintf(path, sizeof(path), "%s/%s", argv[2], strcpy(base, name));
      Load(path, status, &model);
      applied = 0;
      printf("base %s", base);
      Answer(&model, argv + 3, status);
    }
    int position = 0;
    while ((at = Next(at, "name", name)) != NULL) {
      if (position++ < applied) continue;
      if (!Refresh(&model, name, status)) break; /* It is tried again. */
      ++applied;
      Answer(&model, argv + 3, status);
    }
  }
}
