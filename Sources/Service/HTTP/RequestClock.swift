package import NIOCore
import Purchases
import Synchronization

/// Limits how long bodies may take to arrive: 30 s each, and from the fifth second on no slower than 1 KiB a second.
/// One user may have two bodies at one time that take longer than a second. So a client that sends byte by byte holds
/// no places.
///
/// One task looks at all running bodies each second, so a request costs a dictionary entry and no timer of its own.
package final class RequestClock: Sendable {
    package static let limit: Duration = .seconds(30)
    package static let bytesPerSecondMin = 1024
    /// The time before the minimum speed applies: a phone that changes its network is silent for seconds.
    package static let freeFor: Duration = .seconds(5)
    package static let slowOfUserMax = 2
    /// A body that takes longer than this is slow.
    package static let slowAfter: Duration = .seconds(1)

    /// A body that is being read.
    package final class Arrival: Sendable {
        let channel: any Channel
        let user: String?
        let start: ContinuousClock.Instant
        private let count = Atomic<Int>(0)

        /// - Parameter user: a gateway's user; nil for a service key, which sends for many.
        package init(_ channel: any Channel, of user: String?, start: ContinuousClock.Instant = .now) {
            self.channel = channel
            self.user = user
            self.start = start
        }

        /// The bytes that arrived so far.
        package var bytes: Int { count.load(ordering: .relaxed) }

        /// - Returns: the bytes that arrived so far.
        @discardableResult
        package func add(_ bytes: Int) -> Int { count.wrappingAdd(bytes, ordering: .relaxed).newValue }
    }

    private let limit: Duration
    private let arrivals = Mutex<[ObjectIdentifier: Arrival]>([:])

    package init(limit: Duration = RequestClock.limit) {
        self.limit = limit
    }

    func start(_ arrival: Arrival) {
        arrivals.withLock { $0[ObjectIdentifier(arrival)] = arrival }
    }

    func stop(_ arrival: Arrival) {
        arrivals.withLock { $0[ObjectIdentifier(arrival)] = nil }
    }

    package func run() async {
        while !Task.isCancelled {
            try? await Task.sleep(for: min(limit / 4, .seconds(1)))
            let refused = arrivals.withLock { arrivals in
                let late = self.late(Array(arrivals.values), at: ContinuousClock.now)
                for (arrival, _) in late { arrivals[ObjectIdentifier(arrival)] = nil }
                return late
            }
            // The error travels down the pipeline to the reader of the body.
            for (arrival, problem) in refused { arrival.channel.pipeline.fireErrorCaught(problem) }
        }
    }

    /// The bodies that are to be refused, and why. Of a user's slow bodies the oldest go on.
    package func late(_ arrivals: [Arrival], at now: ContinuousClock.Instant) -> [(Arrival, Problem)] {
        var late: [(Arrival, Problem)] = []
        var slow: [[UInt8]: [Arrival]] = [:]
        for arrival in arrivals {
            let age = now - arrival.start
            if age >= limit {
                late.append((arrival, .tooSlow))
            } else if age > Self.freeFor,
                Double(arrival.bytes) < (age - Self.freeFor).inSeconds * Double(Self.bytesPerSecondMin)
            {
                late.append((arrival, .bodyTooSlow))
            } else if age >= Self.slowAfter, let user = arrival.user {
                slow[Array(user.utf8), default: []].append(arrival)
            }
        }
        for ofUser in slow.values where ofUser.count > Self.slowOfUserMax {
            for arrival in ofUser.sorted(by: { $0.start < $1.start }).dropFirst(Self.slowOfUserMax) {
                late.append((arrival, .tooManySlowBodies))
            }
        }
        return late
    }
}
