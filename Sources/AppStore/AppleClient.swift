package import AsyncHTTPClient
import NIOCore
import NIOSSL

extension HTTPClient.Configuration {
    /// The HTTP client for calls to Apple and its OCSP responders: TLS 1.2 or newer, and no redirects, because a
    /// receipt, a token or a question about a certificate is not for other hosts.
    ///
    /// - Parameter inFlight: calls to one host at one time; the client's own default would keep fewer connections.
    package static func apple(inFlight: Int) -> Self {
        var tls = TLSConfiguration.makeClientConfiguration()
        tls.minimumTLSVersion = .tlsv12
        var configuration = Self(tlsConfiguration: tls)
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = inFlight
        configuration.redirectConfiguration = .disallow
        configuration.timeout.connect = .seconds(5)
        // A refused connection is an answer; the retry schedule decides when to try again.
        configuration.connectionPool.retryConnectionEstablishment = false
        // The client makes the tracer's attributes for each call, also if nobody traces.
        configuration.tracing.tracer = nil
        return configuration
    }
}
