// SPDX-License-Identifier: Apache-2.0
#include "ops/core/filter/sketch.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>

namespace rec_estimator {
namespace {

// A function, so that it exists before the registrations of other files.
std::map<std::string, SketchKind>& Kinds() {
  static auto* const kinds = new std::map<std::string, SketchKind>();
  return *kinds;
}

// Integers up to 2^53 in full, and other numbers as a user wrote them.
std::string Text(double number) {
  std::ostringstream text;
  text.precision(std::floor(number) == number ? 17 : 7);
  text << number;
  return text.str();
}

// "a, b and c".
template <typename Items, typename NameOf>
std::string Listed(const Items& items, const NameOf& name_of) {
  std::string text;
  size_t left = items.size();
  for (const auto& item : items) {
    text += name_of(item);
    --left;
    if (left > 0) text += left == 1 ? " and " : ", ";
  }
  return text.empty() ? "none" : text;
}

std::string CheckParameter(const SketchKind::Parameter& parameter,
                           double value) {
  const double low = parameter.low, high = parameter.high;
  const bool is_allowed =
      parameter.is_integer
          ? low <= value && value <= high && std::floor(value) == value
          : low < value && value < high;
  if (is_allowed) return "";
  const std::string bounds = Text(low) + ", " + Text(high);
  return parameter.name + " must be " +
         (parameter.is_integer ? "an integer in [" + bounds + "]"
                               : "in (" + bounds + ")") +
         ", got " + Text(value);
}

}  // namespace

bool ParseSketch(const std::string& text, SketchSpec* spec) {
  std::istringstream words(text);
  std::string word;
  if (!(words >> spec->name)) return false;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    const char* number = word.c_str() + equals + 1;
    char* end;
    double value = std::strtod(number, &end);
    if (end == number || *end != 0) return false;
    if (std::floor(value) != value) value = static_cast<float>(value);
    const bool is_new =
        spec->parameters.emplace(word.substr(0, equals), value).second;
    if (!is_new) return false;
  }
  return true;
}

std::string SketchText(const SketchSpec& spec) {
  std::string text = spec.name;
  for (const auto& [name, value] : spec.parameters) {
    text += " " + name + "=" + Text(value);
  }
  return text;
}

RegisterSketch::RegisterSketch(SketchKind kind) {
  const std::string name = kind.name;
  Kinds().emplace(name, std::move(kind));
}

std::string CheckSketch(const SketchSpec& spec) {
  const auto kind = Kinds().find(spec.name);
  if (kind == Kinds().end()) {
    return "sketch must be one of " +
           Listed(Kinds(), [](const auto& each) { return each.first; }) +
           ", got " + spec.name +
           "; a newer release may have written the graph";
  }
  const auto& parameters = kind->second.parameters;
  bool has_all = spec.parameters.size() == parameters.size();
  for (const SketchKind::Parameter& parameter : parameters) {
    const auto given = spec.parameters.find(parameter.name);
    if (given == spec.parameters.end()) {
      has_all = false;
      continue;
    }
    const std::string broken = CheckParameter(parameter, given->second);
    if (!broken.empty()) return broken;
  }
  if (has_all) return "";
  return "parameters of sketch " + spec.name + " must be " +
         Listed(parameters, [](const auto& each) { return each.name; }) +
         ", got " +
         Listed(spec.parameters, [](const auto& each) { return each.first; });
}

std::vector<std::string> SketchLayouts() {
  std::vector<std::string> suffixes;
  for (const auto& [name, kind] : Kinds()) {
    if (!kind.layout.empty()) suffixes.push_back(kind.layout);
  }
  return suffixes;
}

std::unique_ptr<Sketch> MakeSketch(const SketchSpec& spec, uint32_t threshold) {
  return Kinds().at(spec.name).make(spec, threshold);
}

}  // namespace rec_estimator
