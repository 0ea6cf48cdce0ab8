import Foundation
import Glibc

/// Bytes that break the connection that sends them.
struct Trap {
    let bytes: [UInt8]
    let moment: FaultProxy.Moment
}

/// One client's connection, and the proxy's connection to the server for that client. Used under the proxy's lock.
final class Link {
    /// The tokens of its descriptors at the proxy's `Readiness`.
    let tokens: (client: UInt64, server: UInt64)
    private let readiness: Readiness
    private let observer: FaultProxy.Observer?
    private var toServer: Pipe
    private var toClient: Pipe
    /// Set by a trap that breaks the connection when the server answers.
    private var isDoomed = false
    /// A trap broke the connection in the last move.
    private(set) var wasTrapped = false
    private(set) var isOver = false
    private var isClosed = false
    private var watched: (client: Readiness.Events, server: Readiness.Events) = ([], [])

    init(
        client: Int32, server: Int32, tokens: (client: UInt64, server: UInt64), readiness: Readiness,
        observer: FaultProxy.Observer?
    ) {
        self.tokens = tokens
        self.readiness = readiness
        self.observer = observer
        toServer = Pipe(source: client, sink: server)
        toClient = Pipe(source: server, sink: client)
    }

    /// Watches both descriptors for the events that the link waits for.
    func watch(_ conditions: FaultProxy.Conditions) {
        watch(
            client: toServer.sourceEvents(conditions.toServer).union(toClient.sinkEvents(conditions.toClient)),
            server: toClient.sourceEvents(conditions.toClient).union(toServer.sinkEvents(conditions.toServer)))
    }

    private func watch(client: Readiness.Events, server: Readiness.Events) {
        readiness.watch(toServer.source, client, before: watched.client, token: tokens.client)
        readiness.watch(toServer.sink, server, before: watched.server, token: tokens.server)
        watched = (client, server)
    }

    /// When the bytes that the link keeps back may be written; nil if it waits for nothing but its descriptors.
    func due(_ conditions: FaultProxy.Conditions) -> ContinuousClock.Instant? {
        [toServer.due(conditions.toServer), toClient.due(conditions.toClient)].compactMap(\.self).min()
    }

    /// Reads what is ready to be read, and writes what can be written now.
    func move(
        _ conditions: FaultProxy.Conditions, _ trap: inout Trap?, ready: Set<UInt64>, at now: ContinuousClock.Instant
    ) {
        wasTrapped = false
        if ready.contains(tokens.client), let bytes = toServer.read(conditions.toServer, at: now) {
            if let set = trap, toServer.hasSeen(set.bytes, endingIn: bytes) {
                trap = nil
                wasTrapped = true
                isDoomed = true
                if set.moment == .beforeRequest {
                    isOver = true
                    return
                }
            }
            toServer.remember(bytes)
            observer?(.toServer, bytes[...])
        }
        toServer.write(conditions.toServer, at: now)
        if ready.contains(tokens.server), let bytes = toClient.read(conditions.toClient, at: now) {
            if isDoomed {
                isOver = true
                return
            }
            observer?(.toClient, bytes[...])
        }
        toClient.write(conditions.toClient, at: now)
        isOver = toServer.isOver || toClient.isOver
    }

    /// Sends bytes past every condition, and before the bytes that still wait.
    func inject(_ bytes: [UInt8]) { toClient.sendAtOnce(bytes) }

    /// Closes both descriptors. Afterwards their numbers may belong to another file.
    func close(reset: Bool) {
        guard !isClosed else { return }
        isClosed = true
        isOver = true
        watch(client: [], server: [])
        for descriptor in [toServer.source, toServer.sink] { Sockets.close(descriptor, reset: reset) }
    }
}

/// One direction: reads bytes, keeps them as long as the conditions say, and writes them.
private struct Pipe {
    /// The most bytes kept. The rest stays in the kernel, so that a slow reader slows its writer.
    private static let keptMax = 256 << 10
    private static let memoryBytes = 255

    let source: Int32
    let sink: Int32
    private var kept: [(bytes: ArraySlice<UInt8>, due: ContinuousClock.Instant)] = []
    private var keptBytes = 0
    private var freeAt = ContinuousClock.now
    private var isAtEnd = false
    private var hasFailed = false
    /// The last write found no room.
    private var isFull = false
    /// The last bytes that passed: the bytes of a trap may lie across two reads.
    private var memory: [UInt8] = []

    init(source: Int32, sink: Int32) {
        self.source = source
        self.sink = sink
    }

    var isOver: Bool { hasFailed || (isAtEnd && kept.isEmpty) }

    func sourceEvents(_ conditions: FaultProxy.Conditions.Stream) -> Readiness.Events {
        conditions.isHeld || isAtEnd || keptBytes >= Self.keptMax ? [] : .readable
    }

    func sinkEvents(_ conditions: FaultProxy.Conditions.Stream) -> Readiness.Events {
        conditions.isHeld || !isFull ? [] : .writable
    }

    func due(_ conditions: FaultProxy.Conditions.Stream) -> ContinuousClock.Instant? {
        guard !conditions.isHeld, !isFull, let first = kept.first else { return nil }
        return max(first.due, freeAt)
    }

    mutating func read(
        _ conditions: FaultProxy.Conditions.Stream, at now: ContinuousClock.Instant
    ) -> [UInt8]? {
        guard !conditions.isHeld, !isAtEnd, keptBytes < Self.keptMax else { return nil }
        let bytes = [UInt8](unsafeUninitializedCapacity: 64 << 10) { buffer, count in
            count = recv(source, buffer.baseAddress, buffer.count, 0)
            if count < 0 {
                // EAGAIN comes also while the connection to the server is on its way.
                if errno != EAGAIN && errno != EINTR { isAtEnd = true }
                count = 0
            } else if count == 0 {
                isAtEnd = true
            }
        }
        guard !bytes.isEmpty else { return nil }
        kept.append((bytes[...], now + conditions.latency))
        keptBytes += bytes.count
        return bytes
    }

    mutating func write(_ conditions: FaultProxy.Conditions.Stream, at now: ContinuousClock.Instant) {
        isFull = false
        while !conditions.isHeld, let first = kept.first, first.due <= now, freeAt <= now {
            var part = first.bytes.prefix(conditions.writeBytesMax)
            // Writes the bytes of a hundredth of a second at a time.
            if let rate = conditions.bytesPerSecond { part = part.prefix(max(1, rate / 100)) }
            let sent = part.withUnsafeBytes { send(sink, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
            guard sent > 0 else {
                if errno == EAGAIN || errno == EINTR { isFull = true } else { hasFailed = true }
                return
            }
            keptBytes -= sent
            kept[0].bytes = first.bytes.dropFirst(sent)
            if kept[0].bytes.isEmpty { kept.removeFirst() }
            if let rate = conditions.bytesPerSecond { freeAt = now + .seconds(Double(sent) / Double(rate)) }
        }
    }

    mutating func sendAtOnce(_ bytes: [UInt8]) {
        _ = bytes.withUnsafeBytes { send(sink, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
    }

    func hasSeen(_ sought: [UInt8], endingIn bytes: [UInt8]) -> Bool {
        Data(memory + bytes).range(of: Data(sought)) != nil
    }

    mutating func remember(_ bytes: [UInt8]) {
        memory = Array((memory + bytes.suffix(Self.memoryBytes)).suffix(Self.memoryBytes))
    }
}
