import AsyncHTTPClient
import BlockingIO
import NIOCore
import NIOSSL
import Settings
import Synchronization

/// The HTTP clients of one endpoint: one for each checked address of its host.
///
/// The name is resolved here and nowhere else. Each client connects to the one address for which it was made, so an
/// answer that a name server gives later reaches no connection before it was checked.
final class EndpointClients: Sendable {
    /// How long the addresses of a name hold. getaddrinfo(3) does not say how long they are good.
    static let addressesHold: Duration = .seconds(30)
    /// Connections without work end before the receivers' own limits do (5 s in Node.js): a request on a connection that
    /// the other side just closes would be a failure of nobody.
    private static let idleMax: TimeAmount = .seconds(4)

    /// A client with the address to which it connects.
    struct Target: Sendable {
        let address: IPAddress
        let http: HTTPClient
    }

    private struct State {
        /// In the order in which they are tried.
        var targets: [Target] = []
        /// Those of former addresses, each with the time from which on no send can use it any more.
        var retired: [(target: Target, end: ContinuousClock.Instant)] = []
        var resolvedAt: ContinuousClock.Instant?
        /// The look-up that runs; all sends wait for the same one.
        var lookUp: Task<Result<[Target], WebhookFailure>, Never>?
        var isShutDown = false
    }

    private let endpoint: EndpointSettings
    private let trustRoots: NIOSSLTrustRoots
    private let state = Mutex(State())

    init(_ endpoint: EndpointSettings, trustRoots: NIOSSLTrustRoots) {
        self.endpoint = endpoint
        self.trustRoots = trustRoots
    }

    /// The clients of all addresses of the host, the one that is tried first in front; empty once it is shut down.
    ///
    /// - Throws: for a name without addresses, and if one of the addresses is refused.
    func targets() async throws(WebhookFailure) -> [Target] {
        let (targets, lookUp) = state.withLock { state in
            let isFresh = state.resolvedAt.map { ContinuousClock.now < $0 + Self.addressesHold } ?? false
            if !isFresh, !state.isShutDown { state.lookUp = state.lookUp ?? Task { await self.renew() } }
            return (state.targets, state.lookUp)
        }
        guard let lookUp else { return targets }
        return try await lookUp.value.get()
    }

    /// Tries this address last from now on: no connection could be made to it.
    func demote(_ address: IPAddress) {
        state.withLock { state in
            guard state.targets.first?.address == address else { return }
            state.targets.append(state.targets.removeFirst())
        }
    }

    /// Ends every connection. Sends that run fail.
    func shutDown() async {
        let targets = state.withLock { state in
            defer { (state.targets, state.retired, state.isShutDown) = ([], [], true) }
            return state.targets + state.retired.map(\.target)
        }
        for target in targets { try? await target.http.shutdown() }
    }

    /// Resolves and checks the host, and takes up its addresses.
    private func renew() async -> Result<[Target], WebhookFailure> {
        let addresses: Result<[IPAddress], WebhookFailure>
        do throws(WebhookFailure) {
            addresses = .success(try await checkedAddresses())
        } catch {
            addresses = .failure(error)
        }
        return state.withLock { state in
            state.lookUp = nil
            return addresses.map { take($0, &state) }
        }
    }

    private func take(_ addresses: [IPAddress], _ state: inout State) -> [Target] {
        guard !state.isShutDown else { return [] }
        let now = ContinuousClock.now
        state.resolvedAt = now
        // The same addresses keep their order: the first one may have been demoted.
        if Set(state.targets.map(\.address)) == Set(addresses) { return state.targets }
        let former = state.targets + state.retired.map(\.target)
        // No send takes longer than the endpoint's time limit.
        state.retired += state.targets.map { (target: $0, end: now + endpoint.timeout) }
        state.targets = addresses.map { address in
            former.first { $0.address == address } ?? Target(address: address, http: client(for: address))
        }
        state.retired.removeAll { addresses.contains($0.target.address) }
        let ended = state.retired.filter { $0.end <= now }
        state.retired.removeAll { $0.end <= now }
        for (target, _) in ended { Task { try? await target.http.shutdown() } }
        return state.targets
    }

    private func checkedAddresses() async throws(WebhookFailure) -> [IPAddress] {
        let host = endpoint.url.host
        var addresses: [IPAddress] = []
        if let address = endpoint.url.address {
            addresses = [address]
        } else {
            do throws(HostNames.Failure) {
                addresses = try await HostNames.addresses(of: host).compactMap(IPAddress.init(bytes:))
            } catch {
                switch error {
                case .notFound: throw WebhookFailure(.nameNotFound, "\(host) has no address")
                case .unanswered(let text):
                    throw WebhookFailure(.nameNotFound, "no name server told the addresses of \(host): \(text)")
                }
            }
        }
        for address in addresses {
            guard let kind = endpoint.allowed.refusal(of: address, host: host) else { continue }
            throw WebhookFailure(
                .refusedAddress, "\(host) is at \(address), \(kind.rawValue), which allowPrivate does not list")
        }
        return addresses
    }

    private func client(for address: IPAddress) -> HTTPClient {
        var tls = TLSConfiguration.makeClientConfiguration()
        tls.minimumTLSVersion = .tlsv12
        tls.trustRoots = trustRoots
        var configuration = HTTPClient.Configuration(tlsConfiguration: tls)
        if endpoint.url.address == nil { configuration.dnsOverride = [endpoint.url.host: address.description] }
        configuration.httpVersion = .http1Only
        configuration.redirectConfiguration = .disallow
        configuration.timeout.connect = .init(min(endpoint.timeout / 2, .seconds(5)))
        configuration.connectionPool.idleTimeout = Self.idleMax
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = endpoint.concurrency
        // A refused connection is an answer; the schedule decides when to try again.
        configuration.connectionPool.retryConnectionEstablishment = false
        // The client makes the tracer's attributes for each call, also if nobody traces.
        configuration.tracing.tracer = nil
        return HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
    }
}
