// SPDX-License-Identifier: Apache-2.0
// REC_ESTIMATOR_FOR_EACH_CPU before a function compiles it for several CPUs;
// the loader selects the version for the CPU that is there.
#ifndef REC_ESTIMATOR_OPS_CORE_BASE_CPU_VERSIONS_H_
#define REC_ESTIMATOR_OPS_CORE_BASE_CPU_VERSIONS_H_

// The sanitizers cannot run the resolvers that the loader calls to select a
// version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REC_ESTIMATOR_FOR_EACH_CPU \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REC_ESTIMATOR_FOR_EACH_CPU
#endif

#endif  // REC_ESTIMATOR_OPS_CORE_BASE_CPU_VERSIONS_H_
