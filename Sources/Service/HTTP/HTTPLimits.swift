package import HummingbirdCore
import Logging
import NIOCore

/// Bounds of every HTTP server of this program.
package enum HTTPLimits {
    /// Longer than the 60 s after which gateways give up, so that the gateways close the connection.
    static let idleTimeout: TimeAmount = .seconds(75)
    /// Open connections, where the process has descriptors for them; further connections wait in the backlog.
    package static let connectionsMax = 10_000
    static let headerBytesMax = 32 << 10
    static let headersMax = 100

    /// - Parameters:
    ///   - requestLimit: how long a request's head may take to arrive.
    ///   - connections: the listener's.
    package static func http1(
        requestLimit: Duration = RequestClock.limit, connections: ConnectionLimit
    ) -> HTTP1Channel.Configuration {
        HTTP1Channel.Configuration(
            additionalChannelHandlers: [
                MalformedRequestHandler(), RequestHeadTimeout(limit: requestLimit, connections: connections),
            ],
            idleTimeout: idleTimeout,
            httpDecoderConfiguration: .init(
                maxHeaderFieldSize: headerBytesMax, maxHeaderListSize: headerBytesMax, maxHeaderFieldCount: headersMax))
    }
}
