// The one unit that holds the compiled parts of Asio and Beast (see CMakeLists.txt).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
