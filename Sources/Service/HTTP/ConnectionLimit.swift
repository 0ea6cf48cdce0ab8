import HummingbirdCore
package import NIOCore
import Synchronization

/// How many connections a listener may have open. While it is full, new connections wait in the kernel's backlog.
///
/// As soon as only a quarter is left, every answer ends its connection, and the listener closes the connections that
/// have been without a request for longest. So a client that waits gets a turn, and connections that are kept open and
/// idle, or never send anything, hold their places only for a short time.
package final class ConnectionLimit: AvailableConnectionsDelegate {
    /// How long a connection may stay without a request, because the next request may be on its way.
    static let idleMax: TimeAmount = .seconds(1)
    /// The time between two looks at a crowded listener.
    private static let interval: Duration = .milliseconds(250)

    /// An open connection.
    final class Connection: Sendable {
        fileprivate let channel: any Channel
        /// Since when there is no request, in nanoseconds of `NIODeadline`; `busy` while there is one.
        private let idleSince: Atomic<UInt64>
        private let hasClientLeft = Atomic<Bool>(false)
        private static let busy = UInt64.max

        fileprivate init(_ channel: any Channel) {
            self.channel = channel
            idleSince = Atomic(NIODeadline.now().uptimeNanoseconds)
        }

        func becameBusy() { idleSince.store(Self.busy, ordering: .relaxed) }
        func becameIdle(at moment: NIODeadline) { idleSince.store(moment.uptimeNanoseconds, ordering: .relaxed) }
        func clientLeft() { hasClientLeft.store(true, ordering: .relaxed) }

        fileprivate var hasLeft: Bool { hasClientLeft.load(ordering: .relaxed) }
        /// When the connection became idle; while there is a request, later than any moment.
        fileprivate var lastRequest: UInt64 { idleSince.load(ordering: .relaxed) }

        /// Closes the connection, unless a request came meanwhile; only the event loop knows.
        fileprivate func close(ifIdleSince moment: UInt64) {
            channel.eventLoop.execute {
                if self.lastRequest == moment { self.channel.close(promise: nil) }
            }
        }
    }

    private let connectionsMax: Int
    private let open = Atomic<Int>(0)
    private let connections = Mutex<[ObjectIdentifier: Connection]>([:])
    private let security: SecurityLog?
    private let crowds: AsyncStream<Void>
    private let crowd: AsyncStream<Void>.Continuation

    /// - Parameter security: told of connections that are closed without an answer; nil where callers need no
    ///   credential.
    package init(_ connectionsMax: Int, security: SecurityLog? = nil) {
        self.connectionsMax = connectionsMax
        self.security = security
        (crowds, crowd) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    var isCrowded: Bool { excess > 0 }
    /// How many connections are open beyond three quarters.
    private var excess: Int { open.load(ordering: .relaxed) - (connectionsMax * 3 - 1) / 4 }

    package func connectionOpened() {
        open.add(1, ordering: .relaxed)
        if isCrowded { crowd.yield() }
    }
    package func connectionClosed() { open.subtract(1, ordering: .relaxed) }
    package func isAcceptingNewConnections() -> Bool { open.load(ordering: .relaxed) < connectionsMax }

    func remember(_ channel: any Channel) -> Connection {
        let connection = Connection(channel)
        connections.withLock { $0[ObjectIdentifier(channel)] = connection }
        return connection
    }

    func forget(_ channel: any Channel) {
        connections.withLock { $0[ObjectIdentifier(channel)] = nil }
    }

    /// Whether the client has closed its side, or the connection is gone.
    package func hasLeft(_ channel: any Channel) -> Bool {
        connections.withLock { $0[ObjectIdentifier(channel)] }?.hasLeft ?? true
    }

    /// Tells the security log that connections were closed for a limit.
    ///
    /// - Parameter peer: the client's address, where it is one connection.
    func note(_ limit: Limit, count: Int = 1, of peer: SocketAddress? = nil) {
        security?.note(.limit(limit), count: count, by: nil, LogKeys.peer(peer))
    }

    /// Closes idle connections while the listener is crowded, until the task is cancelled.
    package func run() async {
        for await _ in crowds {
            while !Task.isCancelled, isCrowded {
                closeIdle()
                try? await Task.sleep(for: Self.interval)
            }
        }
    }

    private func closeIdle() {
        let latest = (NIODeadline.now() - Self.idleMax).uptimeNanoseconds
        let idle = connections.withLock { $0.values.map { (connection: $0, since: $0.lastRequest) } }
            .filter { $0.since <= latest }.sorted { $0.since < $1.since }
        let longest = idle.prefix(max(0, excess))
        for (connection, since) in longest { connection.close(ifIdleSince: since) }
        if !longest.isEmpty { note(.crowdedConnection, count: longest.count) }
    }
}
