import CEpoll
import Glibc

/// epoll(7), level-triggered: which descriptors have something to do. The cost depends on those, not on how many are
/// watched. The owner of a descriptor unwatches it before closing it: a child process may have inherited it.
struct Readiness {
    struct Events: OptionSet {
        let rawValue: UInt32
        static let readable = Events(rawValue: EPOLLIN.rawValue)
        static let writable = Events(rawValue: EPOLLOUT.rawValue)
    }

    private static let eventsMax = 256
    private let queue: Int32

    init?() {
        queue = epoll_create1(Int32(EPOLL_CLOEXEC))
        if queue < 0 { return nil }
    }

    func close() { Glibc.close(queue) }

    /// - Parameters:
    ///   - events: the events to watch for; empty: the descriptor is not watched, not even for its end.
    ///   - before: the events that the descriptor is watched for so far.
    ///   - token: the name of the descriptor in the answer of `wait`.
    func watch(_ descriptor: Int32, _ events: Events, before: Events = [], token: UInt64) {
        guard events != before else { return }
        var event = epoll_event(events: events.rawValue, data: epoll_data_t(u64: token))
        let operation = events.isEmpty ? EPOLL_CTL_DEL : before.isEmpty ? EPOLL_CTL_ADD : EPOLL_CTL_MOD
        _ = epoll_ctl(queue, operation, descriptor, &event)
    }

    /// The tokens of the descriptors that are ready or have failed, at most 256; the next call returns the others.
    func wait(until deadline: ContinuousClock.Instant?) -> Set<UInt64> {
        var milliseconds: Int32 = -1
        if let deadline {
            let left = ((deadline - ContinuousClock.now) / .milliseconds(1)).rounded(.up)
            milliseconds = Int32(max(0, min(left, 1000)))
        }
        var events = [epoll_event](repeating: epoll_event(), count: Self.eventsMax)
        let count = epoll_wait(queue, &events, Int32(events.count), milliseconds)
        return Set(events.prefix(Int(max(0, count))).map(\.data.u64))
    }
}
