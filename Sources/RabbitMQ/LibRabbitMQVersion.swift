internal import CRabbitMQ

/// The version of librabbitmq that is loaded, which may be another than the one this program was built with.
package struct LibRabbitMQVersion: Sendable, Equatable, CustomStringConvertible {
    /// As `amqp_version_number` gives it: a byte each for major, minor, patch, and 1 for a release, 0 for something
    /// before it (amqp.h, AMQP_VERSION_CODE).
    package let number: UInt32

    /// The oldest version that this module is written for and tested with; 0.10 lacks the limits on what a hostile
    /// broker may send.
    package static let oldest = LibRabbitMQVersion(number: 0x00_0B_00_01)

    package init(number: UInt32) {
        self.number = number
    }

    package static var loaded: LibRabbitMQVersion { LibRabbitMQVersion(number: amqp_version_number()) }

    /// Throws if the loaded library is too old; for the start of a process. Not retryable: a person has to install
    /// another library.
    package func check() throws(OldLibRabbitMQ) {
        guard number >= Self.oldest.number else { throw OldLibRabbitMQ(version: self) }
    }

    package var description: String {
        "\(number >> 24).\(number >> 16 & 0xFF).\(number >> 8 & 0xFF)" + (number & 0xFF == 0 ? " (before release)" : "")
    }
}

/// The loaded librabbitmq is older than this program can work with.
package struct OldLibRabbitMQ: Error, Equatable, CustomStringConvertible {
    package let version: LibRabbitMQVersion

    package var description: String {
        "librabbitmq \(version) is too old: install librabbitmq4 \(LibRabbitMQVersion.oldest) or newer"
    }
}
