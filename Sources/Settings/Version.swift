/// The version of this program, numbered as semver.org says; deploy/package reads it here.
package enum Version {
    package static let current = "0.1.0"
}
