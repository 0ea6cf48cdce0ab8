import Foundation
import Synchronization

/// A limit that lets each of several things be told once a minute.
final class OncePerMinute<Thing: Hashable & Sendable>: Sendable {
    private struct Told {
        var at: ContinuousClock.Instant
        var untold = 0
    }

    private let told = Mutex<[Thing: Told]>([:])

    /// - Returns: how often the thing happened since it was last told, this time included; nil: the thing was told
    ///   within the last minute.
    func take(_ thing: Thing, at now: ContinuousClock.Instant = .now) -> Int? {
        told.withLock { told in
            if let last = told[thing], now - last.at < .seconds(60) {
                told[thing]?.untold += 1
                return nil
            }
            let count = (told[thing]?.untold ?? 0) + 1
            told[thing] = Told(at: now)
            return count
        }
    }
}

/// A count up to a bound a day, by UTC, in this process.
final class DayCount: Sendable {
    private let max: Int
    private let count = Mutex((day: 0, taken: 0))

    init(max: Int) { self.max = max }

    /// - Returns: false: the day's bound is reached.
    func take(at now: Date = .now) -> Bool {
        let day = Int(now.timeIntervalSince1970 / 86_400)
        return count.withLock { count in
            if count.day != day { count = (day, 0) }
            guard count.taken < max else { return false }
            count.taken += 1
            return true
        }
    }

    func giveBack() { count.withLock { $0.taken = Swift.max(0, $0.taken - 1) } }
}
