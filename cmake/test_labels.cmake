# Labels of all tests, in this one place: `ctest -L fast` (every change), `ctest -L slow` (the rest), `ctest -L gpu`, and
# `ctest -L kernels` and the like for a layer or a folder of tests/. Read when CMake configures, for programs that are
# tests, and again by ctest, for the cases of GoogleTest programs, which are known only then.

# Slow is what takes more than about two seconds on one core. Everything else is fast: a new test is, until it is named here.
set(SATURATE_SLOW_TESTS
  "^train\\." "^cli\\.(behaviour|limits|doctor|doctor_watch|doctor_trial|top)$" "^install\\." "^interop\\." "^python\\." "^distributed\\.(mpi|nccl|gloo\\.(axes|layouts))"
  "AttentionCpuTest\\.MatchesReference/(many|.*_256|.*_192|.*wide)" "OneThreadOrManyGiveTheSameBits" "^Nvrtc\\.Compiles"
  "GroupedGemm\\.EveryImplementation" "TranslatorSearch\\.EqualsSearch" "Translator\\.(SentenceDoesNot|PlansByLength)"
  "LayoutRandom" "LayoutMutants" "^Kineto\\.QuickAndCareful" "^Serving\\.SilentAndSlow" "^CheckpointKill" "PhrasesAreTranslated"
  "Families\\.GradientsOfATranslator" "LinearAttentionMixer\\.Gradients" "^doctor\\.traces" "Translator\\.SentencesComeAndGo"
  "LayoutCompare\\.BoundsInFp32" "^serve\\.(page|ensemble)$" "^CheckedFolders\\.AreReadOnce" "^PanelFileTest\\."
  "^ModelWeightsTest\\.KeptPanels"
)
# Cases that do nothing but skip without a GPU, and there are more of them than of all others: where there is none, they are
# not fast but `gpu`, because starting a program for each is most of what they cost.
set(SATURATE_GPU_TESTS "[Cc]uda" "bf16" "_f16" "Hopper" "Mma" "Wgmma" "Tf32" "SgemmRungs" "Bf16x6")

# saturate_label_tests(GROUP tests...): GROUP is their layer; empty: the part of a name before its first dot.
function(saturate_label_tests group)
  foreach(test ${ARGN})
    set(speed fast)
    foreach(pattern ${SATURATE_SLOW_TESTS})
      if(test MATCHES "${pattern}")
        set(speed slow)
      endif()
    endforeach()
    if(group STREQUAL "kernels" AND NOT EXISTS /dev/nvidiactl)
      foreach(pattern ${SATURATE_GPU_TESTS})
        if(test MATCHES "${pattern}")
          set(speed gpu)
        endif()
      endforeach()
    endif()
    set(label ${group})
    if(NOT label)
      string(REGEX REPLACE "\\..*$" "" label ${test})
    endif()
    set_tests_properties("${test}" PROPERTIES LABELS "${speed};${label}")
  endforeach()
endfunction()

# All tests that the current CMakeLists.txt has added; its last line.
macro(saturate_label_tests_here)
  get_property(tests_here DIRECTORY PROPERTY TESTS)
  saturate_label_tests("" ${tests_here})
endmacro()
