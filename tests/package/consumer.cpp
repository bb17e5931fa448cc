#include <dtrain/dtrain.hpp>

int main() {
  return dtrain::Shape{2, 3}.element_count() == 6 ? 0 : 1;
}
