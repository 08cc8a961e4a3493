# Every outside library, the version that was tried, and the one reason it is here. Versions are Debian 12's.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)    # 3.11.2: JSON parsing by events, which lets us limit depth while reading
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy>=1.0.3)      # 1.0.3: one SIMD source for every vector target
# One source, one object for each vector target below, chosen at run time (kernels/target.h). SSE4 is the least of them on
# x86-64; processors without it use ref/, so Highway's own scalar emulation is not compiled. All who dispatch must agree.
add_library(df_vector INTERFACE)
target_link_libraries(df_vector INTERFACE PkgConfig::HWY)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_compile_definitions(df_vector INTERFACE HWY_BASELINE_TARGETS=HWY_SSE4
                             "HWY_DISABLED_TARGETS=(HWY_SCALAR|HWY_EMU128|HWY_SSSE3)")
endif()
pkg_check_modules(YAMLCPP REQUIRED IMPORTED_TARGET yaml-cpp>=0.7)  # 0.7.0: merge recipes; depth and aliases capped by us
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash>=0.8)  # 0.8.1: XXH3-128 fingerprints at memory speed
pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)                # linear-time patterns from adapter configs
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core>=1.0)  # 1.0.1: metrics text; core only, no HTTP of its own
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas>=0.3.21)  # 0.3.21: BLAS and LAPACK for linalg/; Debian's serial build
find_package(Boost 1.81 REQUIRED)            # 1.81: Asio coroutines and Beast's HTTP parser, headers only
pkg_check_modules(SPDLOG REQUIRED IMPORTED_TARGET spdlog>=1.10)  # 1.10: log lines of `serve`
if(DELTAFOLD_TESTS)
  find_package(GTest REQUIRED)               # 1.12.1: tests
endif()
if(DELTAFOLD_BENCH)
  find_package(benchmark REQUIRED)           # 1.7.1: micro-benchmarks
endif()
