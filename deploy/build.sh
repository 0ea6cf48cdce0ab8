# The two builds, the same for every script; sourced.
# shellcheck shell=bash disable=SC2034 # what the scripts use

# For tests and for looking around (`swift build`, debug). Warnings are errors in our code; SwiftPM leaves the flag out
# for dependencies. A file with a warning never counts as built, so an incremental build cannot hide one. Not in
# Package.swift: a newer compiler must not break our users. Not without the index of the sources, by which SwiftPM finds the
# tests. With other flags everything of ours would be compiled again.
debug_build=(-Xswiftc -warnings-as-errors)

# What is shipped and measured, of deploy/package, deploy/bench and deploy/nightly. With the Swift runtime in it, so that it
# runs without a toolchain and no call of the runtime goes through a table; and optimised across modules: the libraries'
# generic code is compiled for our types. Together a sixth more receipts for a worker. Linked by lld, with its table of
# relocations packed: the dynamic loader reads seven megabytes less into the memory of each process. Calls of libraries are bound at
# the start, and their table is read-only from then on (relro, now). Ten to twenty minutes on two cores the first time.
release_build=(-c release --static-swift-stdlib -Xswiftc -cross-module-optimization
    -Xswiftc -use-ld=lld -Xlinker -z -Xlinker pack-relative-relocs
    -Xlinker -z -Xlinker relro -Xlinker -z -Xlinker now)

# Ends the script where there is no Swift.
require_swift() {
    command -v swift > /dev/null && return
    echo "no swift in PATH; get a toolchain (6.2 or newer) from https://www.swift.org/install/linux/" >&2
    exit 1
}
