# The release build, the same for every script, so that what is tried and measured is what deploy/package ships; sourced.
# shellcheck shell=bash disable=SC2034 # what the scripts use
#
# With the Swift runtime in it, so that it runs without a toolchain and no call of the runtime goes through a table; and
# optimised across modules: the libraries' generic code is compiled for our types. Together a sixth more receipts for a
# worker. Linked by lld, with its table of relocations packed: the dynamic loader reads seven megabytes less into the memory
# of each process. Ten to twenty minutes on two cores the first time.
release_build=(-c release --product makegood --static-swift-stdlib -Xswiftc -cross-module-optimization
    -Xswiftc -use-ld=lld -Xlinker -z -Xlinker pack-relative-relocs)
