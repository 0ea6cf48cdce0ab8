import Foundation
import Glibc
import Synchronization

/// A TCP proxy that stands between a process and a server, and misbehaves on command. It listens on loopback.
///
/// One thread and one epoll(7) serve all connections. A setting is in force when the call returns: every step of the
/// thread and every command happen under one lock. The owner ends the proxy with `end`.
package final class FaultProxy: Sendable {
    /// The proxy's treatment of its connections, until another one is set.
    package struct Conditions: Sendable, Equatable {
        /// New connections are closed at once.
        package var refuses = false
        /// The connections that stand when this is set break.
        package var breaks = false
        package var toServer = Stream()
        package var toClient = Stream()

        /// One direction of every connection.
        package struct Stream: Sendable, Equatable {
            /// No byte moves, and no end of stream either: a black hole. Bytes that were sent meanwhile pass
            /// afterwards.
            package var isHeld = false
            /// Each byte arrives so much later.
            package var latency: Duration = .zero
            /// The most bytes of one write.
            package var writeBytesMax = Int.max
            /// Above 0.
            package var bytesPerSecond: Int?

            package init() {}
        }

        package init() {}

        private init(refuses: Bool, breaks: Bool) {
            self.refuses = refuses
            self.breaks = breaks
        }

        package static let forwarding = Conditions()
        /// Connections stand, and new ones are accepted, but nothing passes.
        package static let frozen = both { $0.isHeld = true }
        /// Every byte is a write of its own.
        package static let sliced = both { $0.writeBytesMax = 1 }
        /// New connections are refused; those that stand go on.
        package static let refusing = Conditions(refuses: true, breaks: false)
        /// Every connection breaks, and new ones are refused.
        package static let cut = Conditions(refuses: true, breaks: true)

        /// The same conditions for both directions.
        package static func both(_ change: (inout Stream) -> Void) -> Conditions {
            var conditions = Conditions()
            change(&conditions.toServer)
            change(&conditions.toClient)
            return conditions
        }
    }

    /// The moment when a trap breaks its connection: before the server gets the bytes, or after the server has done
    /// what they ask and before its answer passes. For the client the outcome is unknown both times.
    package enum Moment: Sendable { case beforeRequest, beforeAnswer }

    package enum Direction: Sendable { case toServer, toClient }

    /// Sees the bytes that pass, on the proxy's thread; the proxy makes a new one for each connection.
    package typealias Observer = @Sendable (Direction, ArraySlice<UInt8>) -> Void

    package struct Failure: Error {}

    /// Everything that changes, under one lock.
    private struct State {
        var conditions = Conditions()
        /// By number, from 1.
        var links: [UInt64: Link] = [:]
        var linkCount: UInt64 = 0
        /// The links that keep bytes back until their time has come.
        var late: Set<UInt64> = []
        var trap: Trap?
        var trapCount = 0
        var target: Target
        var isEnded = false

        mutating func breakLinks(reset: Bool) {
            for link in links.values { link.close(reset: reset) }
            links = [:]
            late = []
        }

        /// When the first of the late links is due.
        var deadline: ContinuousClock.Instant? {
            late.lazy.compactMap { links[$0]?.due(conditions) }.min()
        }
    }

    /// The tokens of the proxy's own descriptors; those of link n are 2n and 2n + 1.
    private enum Token {
        static let wake: UInt64 = 0
        static let listener: UInt64 = 1
    }

    package let port: Int
    private let listener: Int32
    /// Written to when the thread has to look again.
    private let wake: (read: Int32, write: Int32)
    private let readiness: Readiness
    private let state: Mutex<State>
    private let observer: (@Sendable () -> Observer)?

    /// - Parameters:
    ///   - url: the server's URL, with host and port.
    ///   - observer: called for each connection.
    package init(to url: String, observer: (@Sendable () -> Observer)? = nil) throws {
        guard let target = Target(url), let (listener, port) = Sockets.listen() else { throw Failure() }
        var ends: [Int32] = [0, 0]
        guard pipe(&ends) == 0, let readiness = Readiness() else { throw Failure() }
        for end in ends { Sockets.prepare(end) }
        self.listener = listener
        self.port = port
        self.observer = observer
        wake = (ends[0], ends[1])
        self.readiness = readiness
        state = Mutex(State(target: target))
        Thread.detachNewThread { [self] in run() }
    }

    /// The same URL, but through the proxy.
    package func url(_ url: String) -> String {
        guard var parts = URLComponents(string: url) else { return url }
        parts.host = "127.0.0.1"
        parts.port = port
        return parts.string ?? url
    }

    /// Sends new connections to another server; connections that stand stay. False if the URL is no address.
    @discardableResult
    package func retarget(to url: String) -> Bool {
        guard let target = Target(url) else { return false }
        change { $0.target = target }
        return true
    }

    package var conditions: Conditions { state.withLock { $0.conditions } }

    package func set(_ conditions: Conditions) {
        change { state in
            state.conditions = conditions
            if conditions.breaks { state.breakLinks(reset: false) }
        }
    }

    /// Breaks every connection once; with `reset` both sides see RST instead of FIN.
    package func breakConnections(reset: Bool = true) {
        change { $0.breakLinks(reset: reset) }
    }

    /// Sends bytes to every client as if the server had sent them, also while nothing passes. Call it only while no
    /// frame is on its way.
    package func inject(_ bytes: [UInt8]) {
        change { state in for link in state.links.values { link.inject(bytes) } }
    }

    /// Breaks one connection: the first whose client sends these bytes from now on.
    package func trap(_ bytes: [UInt8], _ moment: Moment) {
        change { $0.trap = Trap(bytes: bytes, moment: moment) }
    }

    /// How many connections a trap has broken.
    package var trapCount: Int { state.withLock { $0.trapCount } }

    /// Connections that stand.
    package var connections: Int { state.withLock { $0.links.count } }

    /// Breaks everything and stops listening.
    package func end() {
        change { state in
            state.isEnded = true
            state.breakLinks(reset: false)
        }
    }

    private func change(_ body: (inout sending State) -> Void) {
        state.withLock { state in
            guard !state.isEnded else { return }
            body(&state)
            _ = write(wake.write, [1], 1)
        }
    }

    // MARK: The thread

    private func run() {
        readiness.watch(wake.read, .readable, token: Token.wake)
        readiness.watch(listener, .readable, token: Token.listener)
        while true {
            let (isEnded, deadline) = state.withLock { ($0.isEnded, $0.deadline) }
            if isEnded { break }
            let ready = readiness.wait(until: deadline)
            state.withLock { turn(&$0, ready) }
        }
        readiness.close()
        for descriptor in [listener, wake.read, wake.write] { close(descriptor) }
    }

    /// - Parameter ready: may name links that were closed meanwhile.
    private func turn(_ state: inout sending State, _ ready: Set<UInt64>) {
        guard !state.isEnded else { return }
        var numbers = state.late.union(ready.map { $0 / 2 })
        if ready.contains(Token.wake) {
            Sockets.drain(wake.read)
            // After a command the links may wait for something else.
            numbers.formUnion(state.links.keys)
        }
        if ready.contains(Token.listener) { numbers.formUnion(accept(&state)) }
        let now = ContinuousClock.now
        for number in numbers {
            guard let link = state.links[number] else { continue }
            link.move(state.conditions, &state.trap, ready: ready, at: now)
            if link.wasTrapped { state.trapCount += 1 }
            if link.isOver {
                link.close(reset: false)
                state.links[number] = nil
                state.late.remove(number)
                continue
            }
            link.watch(state.conditions)
            if link.due(state.conditions) == nil { state.late.remove(number) } else { state.late.insert(number) }
        }
    }

    /// Accepts the clients that wait. Returns the numbers of the new links.
    private func accept(_ state: inout sending State) -> [UInt64] {
        var numbers: [UInt64] = []
        while true {
            let client = Glibc.accept(listener, nil, nil)
            guard client >= 0 else { return numbers }
            Sockets.prepare(client)
            guard !state.conditions.refuses, let server = state.target.connect() else {
                Sockets.close(client, reset: false)
                continue
            }
            state.linkCount += 1
            let number = state.linkCount
            state.links[number] = Link(
                client: client, server: server, tokens: (2 * number, 2 * number + 1), readiness: readiness,
                observer: observer?())
            numbers.append(number)
        }
    }
}
