#include "driver/address.h"

#include <gtest/gtest.h>

namespace rrpc::driver {
namespace {

TEST(Address, RailsAreTakenOutOfTheOptions) {
  const Address address =
      parse_address("verbs+tcp://10.0.0.1:71?rail=10.0.1.1:71&device=a0&rail=[fd00::1]:72&gid=1").value();
  EXPECT_EQ(address.rest, "10.0.0.1:71?device=a0&gid=1");
  EXPECT_EQ(address.rails, (std::vector<std::string>{"10.0.1.1:71", "[fd00::1]:72"}));
  EXPECT_EQ(parse_address(address.to_string()).value().to_string(), address.to_string());
  const Address only = parse_address("verbs://10.0.0.1:71?rail=10.0.1.1:71").value();
  EXPECT_EQ(only.rest, "10.0.0.1:71");
  EXPECT_EQ(only.to_string(), "verbs://10.0.0.1:71?rail=10.0.1.1:71");
}

TEST(Address, RailsAreDialledWithoutWhatChoosesAnAdapterHere) {
  const Address address =
      parse_address("verbs://10.0.0.1:71?device=a0&traffic_class=106&port=1&gid=3&rail=10.0.1.1:72").value();
  const std::vector<Address> rails = rail_addresses(address);
  ASSERT_EQ(rails.size(), 1u);
  EXPECT_EQ(rails[0].to_string(), "verbs://10.0.1.1:72?traffic_class=106");
}

TEST(Address, RailsThatCanNotBeAreRefused) {
  for (const std::string text : {"tcp://127.0.0.1:1?rail=127.0.0.1:2", "rrpc://127.0.0.1:1?rail=127.0.0.1:2",
                                 "verbs://10.0.0.1:71?rail=10.0.1.1", "verbs://10.0.0.1:71?rail=fd00::1",
                                 "verbs://10.0.0.1:71?rail=", "verbs://h:1?rail=a:1&rail=b:1&rail=c:1&rail=d:1"})
    EXPECT_EQ(parse_address(text).status().code(), StatusCode::kInvalidArgument) << text;
}

}  // namespace
}  // namespace rrpc::driver
