internal import CLibPQ

/// The version of libpq that is loaded, which may be another than the one this program was built with.
public struct LibPQVersion: Sendable, Equatable, CustomStringConvertible {
    /// As `PQlibVersion` gives it: 150020 is 15.20 (libpq manual, 34.11 Miscellaneous Functions).
    public let number: Int

    /// The oldest version that this module is written for and tested with: it has SQLSTATE-only messages on a
    /// connection that failed to open, and several hosts with `target_session_attrs`.
    public static let oldest = LibPQVersion(number: 150_000)

    public init(number: Int) {
        self.number = number
    }

    public static var loaded: LibPQVersion { LibPQVersion(number: Int(PQlibVersion())) }

    /// Throws if the loaded library is too old; for the start of a process. Not retryable: a person has to install
    /// another library.
    public func check() throws(OldLibPQ) {
        guard number >= Self.oldest.number else { throw OldLibPQ(version: self) }
    }

    public var description: String {
        // Before 10, a version had three parts: 90624 was 9.6.24.
        number >= 100_000
            ? "\(number / 10_000).\(number % 10_000)" : "\(number / 10_000).\(number / 100 % 100).\(number % 100)"
    }
}

/// The loaded libpq is older than this program can work with.
public struct OldLibPQ: Error, Equatable, CustomStringConvertible {
    public let version: LibPQVersion

    public var description: String {
        "libpq \(version) is too old: install libpq5 of PostgreSQL \(LibPQVersion.oldest) or newer"
    }
}
