import Encoding
package import Foundation
package import Logging
import NIOCore
import Purchases

/// Every metadata key of this module. No key carries a payload, a token or a full user id.
package enum LogKeys {
    /// As OpenTelemetry's log model names it, so that tools find it.
    static let trace = "trace_id"

    package static func receipt(_ id: UUID) -> Logger.Metadata { ["receipt.id": "\(id.text)"] }

    /// The address of a connection, named as OpenTelemetry names it.
    static func peer(_ address: SocketAddress?) -> Logger.Metadata {
        address?.ipAddress.map { ["network.peer.address": "\($0)"] } ?? [:]
    }

    package static func error(_ error: any Error) -> Logger.Metadata { ["error": "\(error)"] }
}
