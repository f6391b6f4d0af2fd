// SPDX-License-Identifier: Apache-2.0
#include "ops/serving/refresh_folder.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/platform/env.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;

// Longer names are no file's.
constexpr size_t kLongestName = 4096;

bool StaysInside(const std::string& name) {
  if (name.size() > kLongestName || absl::StrContains(name, '\0') ||
      absl::StrContains(name, "://")) {
    return false;
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// '' if there is no such file.
std::string RealPath(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(
      realpath(path.c_str(), nullptr), std::free);
  return real == nullptr ? "" : real.get();
}

// InvalidArgument if a file of the delta is a link out of the folder. The files
// of TensorFlow's other file systems are no links.
Status CheckLinks(const std::string& folder, const std::string& prefix) {
  absl::string_view local_folder = folder, local_prefix = prefix;
  absl::ConsumePrefix(&local_folder, "file://");
  absl::ConsumePrefix(&local_prefix, "file://");
  if (absl::StrContains(local_folder, "://")) return Status();
  const std::string inside = RealPath(std::string(local_folder)) + "/";
  const std::string parent(tensorflow::io::Dirname(local_prefix));
  const std::string base(tensorflow::io::Basename(local_prefix));
  std::vector<std::string> names;
  // If there is no such folder, reading the delta says so.
  (void)tensorflow::Env::Default()->GetChildren(parent, &names);
  for (const std::string& name : names) {
    if (name != base + ".index" && !absl::StartsWith(name, base + ".data-")) {
      continue;
    }
    const std::string real = RealPath(tensorflow::io::JoinPath(parent, name));
    if (real.empty() || absl::StartsWith(real, inside)) continue;
    return InvalidArgument("delta must be in folder ", folder, ", got ", prefix,
                           ", of which ", name,
                           " is a link that leads out of it; copy the file");
  }
  return Status();
}

}  // namespace

Status FindDelta(const std::string& folder, const std::string& name,
                 std::string* prefix) {
  if (!StaysInside(name)) {
    return InvalidArgument(
        "delta must be a name in the folder of deltas, without \"..\", got ",
        name.substr(0, 100), "; name it as \"model.ckpt-120\"");
  }
  const char* const from_environment =
      std::getenv("REC_ESTIMATOR_REFRESH_FOLDER");
  const bool is_set = from_environment != nullptr && *from_environment != 0;
  const std::string& used = is_set ? from_environment : folder;
  if (used.empty()) {
    return FailedPrecondition(
        "the model was exported without refresh_folder, and the environment "
        "variable REC_ESTIMATOR_REFRESH_FOLDER is not set; set it to the "
        "folder of deltas and start the server again");
  }
  *prefix = tensorflow::io::JoinPath(used, name);
  return CheckLinks(used, *prefix);
}

}  // namespace rec_estimator
