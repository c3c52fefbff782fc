# Fails the build if the object of an instruction set holds a function that another object may share: the linker keeps
# one of equal inline functions, and were it the one compiled for AVX-512, every other processor would run it.
# Called with NM and OBJECTS, which are separated by "|".

string(REPLACE "|" ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  if(NOT object MATCHES "/isa/(avx[0-9a-z_]*|neon[0-9a-z_]*)\\.cpp")
    continue()
  endif()
  set(isa ${CMAKE_MATCH_1})
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," symbols "${symbols}")
  string(REGEX MATCHALL "[^\n]* W [^\n]*" functions "${symbols}")
  foreach(function IN LISTS functions)
    if(NOT function MATCHES "forerun::${isa}::")
      message(FATAL_ERROR "isa/${isa}.cpp shares a function with other files: ${function}\n"
        "It would run on processors without ${isa}. Write it in namespace forerun::FORERUN_ISA, or have it inlined.")
    endif()
  endforeach()
endforeach()
