# What `cmake --install` and cpack ship: the program, the layers as static libraries with their headers,
# and a package that find_package(saturate) finds, with targets saturate::base ... saturate::train.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY SATURATE_LAYERS)

install(TARGETS saturate RUNTIME COMPONENT program)
install(TARGETS ${layers} EXPORT saturate-targets ARCHIVE COMPONENT development)
foreach(target ${layers})
  string(REPLACE saturate_ "" name ${target})
  install(DIRECTORY src/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/saturate COMPONENT development
          FILES_MATCHING PATTERN "*.h" PATTERN testing EXCLUDE PATTERN "*_test.h" EXCLUDE)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/generated/base/features.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/saturate/base COMPONENT development)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/saturate)
install(EXPORT saturate-targets NAMESPACE saturate:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/saturateConfig.cmake.in saturateConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(saturateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/saturateConfig.cmake ${CMAKE_BINARY_DIR}/saturateConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program FILES_MATCHING PATTERN "*.toml")

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME saturate)
set(CPACK_PACKAGE_VENDOR Saturate)
set(CPACK_PACKAGE_CONTACT "The Saturate authors <saturate@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL OFF)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dependencies from the libraries the program is linked to
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0)  # opened by name at the first product, so not among those
include(CPack)
