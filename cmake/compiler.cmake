# Compiler cache, warnings and sanitizers: the same for every target of ours.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# Never a global -march: kernels/cpu is compiled for each vector target and chosen at run time.
add_library(df_options INTERFACE)
target_compile_options(df_options INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror -fno-omit-frame-pointer)
# GCC 12 sees an overlapping copy inside its own std::string (bug 105651).
target_compile_options(df_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(DELTAFOLD_SANITIZE)
  add_compile_options(-fsanitize=${DELTAFOLD_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DELTAFOLD_SANITIZE})
endif()
if(DELTAFOLD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
