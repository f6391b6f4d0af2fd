// SPDX-License-Identifier: Apache-2.0
// What tests of files share: a folder of their own, and child processes.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_FOLDER_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_FOLDER_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace rec_estimator {

// An empty folder, which is deleted in the end.
class Folder {
 public:
  Folder() {
    const char* root = std::getenv("TMPDIR");
    std::string name =
        std::string(root != nullptr ? root : "/tmp") + "/rec_estimator_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      files.push_back(entry.path().string());
    }
    return files;
  }
  void Write(const std::string& name, const std::string& contents) const {
    std::ofstream(path_ + "/" + name) << contents;
  }

 private:
  std::string path_;
};

// Runs work in a child process and returns what it returned; -1 if a signal
// ended it, as it does after a minute.
template <typename Work>
int InChild(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_STORAGE_FOLDER_H_
