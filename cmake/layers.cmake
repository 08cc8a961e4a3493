include(GoogleTest)

# df_layer(NAME DEPS ... LINK ...): one static library df_NAME of the calling folder's *.cc; *_test.cc become the test
# program NAME_test, *_bench.cc the program NAME_bench. DEPS are folders further left (ARCHITECTURE.md), LINK are outside
# libraries. New files are picked up without touching any list.
function(df_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")

  add_library(df_${name} STATIC ${sources})
  target_include_directories(df_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  list(TRANSFORM ARG_DEPS PREPEND df_)
  target_link_libraries(df_${name} PUBLIC ${ARG_DEPS} ${ARG_LINK} PRIVATE df_options)

  if(DELTAFOLD_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE df_${name} df_testing df_options GTest::gtest_main)
    # Every TEST is a test of ctest's: counted, timed and run in parallel by itself. Tests whose suite name ends in Slow
    # (seconds, or much memory) carry the label that `make fast` leaves out.
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." TEST_FILTER "-*Slow.*" DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 PROPERTIES LABELS unit)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." TEST_FILTER "*Slow.*" DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_slow_tests PROPERTIES LABELS slow)
  endif()
  if(DELTAFOLD_BENCH AND benches)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE df_${name} df_options benchmark::benchmark_main)
  endif()
endfunction()
