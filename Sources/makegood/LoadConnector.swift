import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL

/// Opens connections to the deployment under load.
struct LoadConnector: Sendable {
    private static let timeout = TimeAmount.seconds(5)

    private let host: String
    private let port: Int
    /// Nil: plain http.
    private let tls: NIOSSLContext?
    /// The name that the server's certificate must prove; nil: the IP address.
    private let serverName: String?

    /// - Parameter roots: the certificates that may sign the server's.
    init(_ address: LoadAddress, trusting roots: NIOSSLTrustRoots = .default) throws {
        host = address.host
        port = address.port
        serverName = (try? SocketAddress(ipAddress: host, port: 0)) == nil ? host : nil
        if address.isSecure {
            var configuration = TLSConfiguration.makeClientConfiguration()
            configuration.trustRoots = roots
            configuration.applicationProtocols = ["http/1.1"]
            tls = try NIOSSLContext(configuration: configuration)
        } else {
            tls = nil
        }
    }

    /// Opens a channel that takes ``LoadRequestWriter``'s requests and decodes answers; its last handler is the
    /// decoder.
    func connect(on loop: any EventLoop) -> EventLoopFuture<any Channel> {
        ClientBootstrap(group: loop).connectTimeout(Self.timeout).channelInitializer { [tls, serverName] channel in
            channel.eventLoop.makeCompletedFuture {
                let pipeline = channel.pipeline.syncOperations
                if let tls { try pipeline.addHandler(NIOSSLClientHandler(context: tls, serverHostname: serverName)) }
                try pipeline.addHandler(LoadRequestWriter())
                try pipeline.addHandler(ByteToMessageHandler(HTTPResponseDecoder()))
            }
        }
        .connect(host: host, port: port)
    }
}
