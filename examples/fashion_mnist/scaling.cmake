# Prints how many times the samples a second of the training in summary ONE that in summary MANY had.

foreach(which ONE MANY)
  file(READ "${${which}}" summary)
  string(JSON ranks_${which} GET "${summary}" world_size)
  string(JSON speed_${which} GET "${summary}" samples_per_second)
  string(REGEX REPLACE "\\..*" "" speed_${which} "${speed_${which}}")
endforeach()
math(EXPR percent "100 * ${speed_MANY} / ${speed_ONE}")
math(EXPR whole "${percent} / 100")
math(EXPR hundredths "${percent} % 100")
if(hundredths LESS 10)
  set(hundredths "0${hundredths}")
endif()
message("bench  scaling  ${ranks_MANY} ranks: ${speed_MANY} samples/s   ${ranks_ONE} rank: ${speed_ONE} samples/s   "
        "ratio ${whole}.${hundredths}")
if(percent LESS 120)
  message("The ranks compute on cores of their own: two ranks are faster than one only where two cores are free.")
endif()
