# install and cpack rules
