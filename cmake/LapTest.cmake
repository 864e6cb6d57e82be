# SPDX-License-Identifier: Apache-2.0
# lap_test: how a test is started. A test fails by its exit status; 77 means that it cannot run here.

list(TRANSFORM LAP_MPI_INCLUDE PREPEND -isystem OUTPUT_VARIABLE mpi_cflags)
string(JOIN " " mpi_cflags ${mpi_cflags})

# What every test finds in its environment, and scripts besides. Several tests run at a time: programs sleep while they wait, and
# leave the core to another test. Those with ${spins} behind ENV spin first, as users' programs do; so do scripts and what
# tests waiting itself, core/ and transport/. OpenBLAS's threads would stay awake for some 20 ms after each GEMM (2 to the 26th cycles).
set(test_environment OPENBLAS_NUM_THREADS=1 OPENBLAS_THREAD_TIMEOUT=4)
set(sleeps LAP_SPIN_US=0)
set(spins LAP_SPIN_US=)
set(script_environment
  LAP=$<TARGET_FILE:lap_cli>
  LAP_SOURCE_DIR=${PROJECT_SOURCE_DIR}
  LAP_BUILD_DIR=${PROJECT_BINARY_DIR}
  LAP_VERSION=${PROJECT_VERSION}
  CC=${CMAKE_C_COMPILER}
  LAP_HAVE_MPI=${LAP_HAVE_MPI}
  LAP_HAVE_CUDA=${LAP_HAVE_CUDA}
  "LAP_MPI_CFLAGS=${mpi_cflags}"
)

# Scripts start python3 hundreds of times. Where PATH has a shim for it, as pyenv's, which takes longer than Python itself, they find the
# program that it would start.
set(python_folder "")
find_program(found_python python3 NO_CACHE)
if(found_python)
  execute_process(COMMAND ${found_python} -c "import os, sys; print(os.path.dirname(sys.executable), end='')"
                  OUTPUT_VARIABLE python_folder ERROR_QUIET)
  get_filename_component(found_folder ${found_python} DIRECTORY)
  if(python_folder STREQUAL found_folder)
    set(python_folder "")
  endif()
endif()

# A TIMEOUT is what a test may take on a machine that does nothing else; other programs may take half of it. Sanitizers are slow, and
# those of gcc 12 and 13 cannot place their shadow memory when addresses are very random.
set(timeout_factor 2)
set(launcher "")
if(LAP_SANITIZE)
  set(timeout_factor 4)
  execute_process(COMMAND setarch -R true RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    set(launcher setarch -R)
  endif()
endif()
# Tests ask for more memory than there is, and want to be told so.
if(LAP_SANITIZE STREQUAL "thread")
  list(APPEND test_environment TSAN_OPTIONS=allocator_may_return_null=1)
elseif(LAP_SANITIZE STREQUAL "address")
  list(APPEND test_environment ASAN_OPTIONS=allocator_may_return_null=1)
  # On aarch64 the search for leaks walks 2^28 regions, four seconds of arithmetic at the end of each process: too long
  # for tests that start many. The others, with their ranks as threads, are searched everywhere.
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(many_processes_environment ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0)
  endif()
endif()

# How ranks are started by mpirun: more of them than cores, on all cores, by whoever builds.
set(mpirun_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
set(mpirun ${LAP_MPIRUN} -bind-to none)
if(LAP_HAVE_MPI)
  execute_process(COMMAND ${LAP_MPIRUN} --version OUTPUT_VARIABLE mpirun_version ERROR_QUIET)
  if(mpirun_version MATCHES "Open MPI|OpenRTE")
    set(mpirun ${LAP_MPIRUN} --bind-to none --oversubscribe)
    set(open_mpi ON)
  endif()
endif()

# What it finds is an error, and so is what the test finds. Only our own kernels are looked at: to prepare those of cuBLASLt
# takes minutes, and says nothing of us.
find_program(LAP_COMPUTE_SANITIZER compute-sanitizer HINTS ${CUDAToolkit_BIN_DIR})
mark_as_advanced(LAP_COMPUTE_SANITIZER)
set(compute_sanitizer ${LAP_COMPUTE_SANITIZER} --error-exitcode 1 --print-limit 10)

# Whether there are tests that need a GPU. Those under compute-sanitizer are long, and are there only when they are asked for.
set(gpu_tests ${LAP_TEST_GPU})
if(LAP_TEST_GPU STREQUAL "AUTO")
  set(gpu_tests OFF)
  execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus RESULT_VARIABLE failed ERROR_QUIET)
  if(LAP_HAVE_CUDA AND NOT LAP_SANITIZE AND NOT failed AND gpus MATCHES "^GPU [0-9]")
    set(gpu_tests ON)
  endif()
endif()
set(sanitizer_tests OFF)
if(LAP_COMPUTE_SANITIZER AND NOT LAP_TEST_GPU STREQUAL "AUTO")
  set(sanitizer_tests ${LAP_TEST_GPU})
endif()

# lap_test(folder/name[.sh] [RANKS n...] [MPI n...] [HOSTS n...] [TCP n...] [ARGS arg...] [ENV name=value...] [TIMEOUT seconds] [LABEL text]
#          [FORKS] [GPU] [SANITIZER tool] [TARGET target])
# Runs the program, or with .sh the script, of that name. RANKS: under `lap run`, once for each number of ranks. MPI: the
# same under mpirun. HOSTS: with so many ranks on each of two hosts, as test/hosts.sh makes them (Open MPI only). TCP: the
# same over TCP, as test/tcp.sh makes them. LABEL tells several entries of one program apart. Several tests run at a time, those with the longest TIMEOUT first.
# LOCK: not at the same time as another test that names the same; those over TCP name tcp_ports, as they choose ports at random.
# FORKS: the program starts processes itself. GPU: it needs one, which its ranks share, and is alone on it; ctest knows it by
# the label gpu. SANITIZER: on a GPU under that tool of compute-sanitizer; the label is gpu-sanitizer. There are tests of these
# two only where gpu_tests and sanitizer_tests above are ON. TARGET: a program that is not one of this folder.
function(lap_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "FORKS;GPU" "TIMEOUT;LABEL;LOCK;TARGET;SANITIZER" "RANKS;MPI;HOSTS;TCP;ARGS;ENV")
  set(alone OFF)
  set_property(GLOBAL APPEND PROPERTY lap_tests ${name})
  if((arg_GPU AND NOT gpu_tests) OR (arg_SANITIZER AND NOT sanitizer_tests))
    return()
  endif()
  set(suffix "")
  if(arg_TARGET)
    set(command $<TARGET_FILE:${arg_TARGET}>)
  elseif(name MATCHES "\\.sh$")
    set(suffix ".sh")
    set(command bash ${PROJECT_SOURCE_DIR}/test/${name})
    set(arg_FORKS ON)
    list(PREPEND arg_ENV ${script_environment})
  else()
    string(REPLACE "/" "_" target test_${name})
    set(command $<TARGET_FILE:${target}>)
  endif()
  if(NOT suffix AND NOT name MATCHES "^(core|transport)/" AND NOT arg_GPU AND NOT arg_SANITIZER)
    list(PREPEND arg_ENV ${sleeps})
  endif()
  if(arg_SANITIZER)
    # The kernels of cuBLASLt are left alone, but that initcheck has to see what they write.
    if(NOT arg_SANITIZER STREQUAL "initcheck")
      list(PREPEND command --kernel-regex kns=lap_)
    endif()
    list(PREPEND command ${compute_sanitizer} --tool ${arg_SANITIZER})
    string(JOIN "-" arg_LABEL ${arg_LABEL} ${arg_SANITIZER})
    set(alone ON)
  endif()
  if(arg_FORKS OR arg_RANKS OR arg_MPI OR arg_HOSTS OR arg_TCP)
    list(PREPEND arg_ENV ${many_processes_environment})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * ${timeout_factor}")
  math(EXPR limit "${arg_TIMEOUT} * 9 / 10") # Then a program says where it is, which who is killed cannot.
  string(REGEX REPLACE "\\.sh$" "" base ${name})
  string(JOIN "-" base ${base} ${arg_LABEL})
  if(NOT arg_RANKS AND NOT arg_MPI AND NOT arg_HOSTS AND NOT arg_TCP)
    set(tests ${base}${suffix})
    add_test(NAME ${tests} COMMAND ${launcher} ${command} ${arg_ARGS})
  endif()
  set(gpu_share "")
  if(arg_GPU)
    set(gpu_share --gpu-share)
    set(alone ON)
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME ${base}-n${ranks}
             COMMAND ${launcher} $<TARGET_FILE:lap_cli> run ${gpu_share} -n ${ranks} ${command} ${arg_ARGS})
    list(APPEND tests ${base}-n${ranks})
  endforeach()
  foreach(ranks IN LISTS arg_MPI)
    add_test(NAME ${base}-n${ranks} COMMAND ${mpirun} -n ${ranks} ${command} ${arg_ARGS})
    list(APPEND tests ${base}-n${ranks})
  endforeach()
  foreach(ranks IN LISTS arg_HOSTS)
    add_test(NAME ${base}-2x${ranks} COMMAND sh ${PROJECT_SOURCE_DIR}/test/hosts.sh ${LAP_MPIRUN} ${ranks}
                                             ${command} ${arg_ARGS})
    list(APPEND tests ${base}-2x${ranks})
  endforeach()
  foreach(ranks IN LISTS arg_TCP)
    add_test(NAME ${base}-tcp-2x${ranks}
             COMMAND ${launcher} bash ${PROJECT_SOURCE_DIR}/test/tcp.sh ${ranks} ${command} ${arg_ARGS})
    list(APPEND tests ${base}-tcp-2x${ranks})
  endforeach()
  # A user who names libraries of a GPU names them for tests on the GPU: the others have those of test/fake, or none.
  if(NOT arg_GPU AND NOT arg_SANITIZER)
    list(PREPEND arg_ENV LAP_CUBLASLT= LAP_NCCL= LAP_CUBLASMP=)
  endif()
  set_tests_properties(${tests} PROPERTIES
    TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77
    RUN_SERIAL ${alone}
    COST ${arg_TIMEOUT}
    ENVIRONMENT "${test_environment};LAP_TEST_LIMIT_S=${limit};${mpirun_environment};${arg_ENV}")
  if(suffix AND python_folder)
    set_tests_properties(${tests} PROPERTIES ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:${python_folder}")
  endif()
  if(arg_TCP)
    set(arg_LOCK tcp_ports)
  endif()
  if(arg_LOCK)
    set_tests_properties(${tests} PROPERTIES RESOURCE_LOCK ${arg_LOCK})
  endif()
  if(arg_SANITIZER)
    set_tests_properties(${tests} PROPERTIES LABELS gpu-sanitizer)
  elseif(arg_GPU)
    set_tests_properties(${tests} PROPERTIES LABELS gpu)
  endif()
endfunction()
