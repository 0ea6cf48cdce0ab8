import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1
import Synchronization

/// Apps that post purchases at a given rate, however earlier posts went (open loop), and try again until accepted.
final class Traffic: Sendable {
    /// The largest number of buyers and posts that are open at the same time; beyond it the load stops growing and
    /// reports it.
    static let openMax = 60_000
    /// The number of task groups: a group searches all its tasks when one ends, so there are many small groups.
    private static let streets = 64
    /// The longest time that an app waits for an answer; gateways wait as long.
    static let patienceMax = TimeAmount.seconds(60)
    /// The pauses before an app's next tries.
    private static let pauses: [Duration] = [.milliseconds(100), .milliseconds(200), .milliseconds(500), .seconds(1)]

    let shop: PurchaseGenerator
    let journal = Journal()
    /// Addresses of the ingests that are up.
    private let addresses: @Sendable () -> [String]
    private let pools: [HTTPClient]
    private let rate: Mutex<Double>
    /// The time that an app waits for an answer now.
    private let patience = Mutex(TimeAmount.seconds(20))
    private let mix: Mutex<PurchaseGenerator.Mix>
    private let isOver = Atomic<Bool>(false)
    private let isPaused = Atomic<Bool>(false)
    private let random: Mutex<SplitMix64>
    /// The number of open requests at each address.
    private let openRequests = Mutex<[String: Int]>([:])

    init(
        shop: PurchaseGenerator, rate: Double, seed: UInt64, pools: [HTTPClient],
        addresses: @escaping @Sendable () -> [String]
    ) {
        self.shop = shop
        self.pools = pools
        self.addresses = addresses
        self.rate = Mutex(rate)
        mix = Mutex(PurchaseGenerator.Mix())
        random = Mutex(SplitMix64(seed: seed))
    }

    /// Sets the number of purchases a second from now on.
    func set(rate: Double) { self.rate.withLock { $0 = rate } }
    func set(patience: TimeAmount) { self.patience.withLock { $0 = patience } }
    func set(_ mix: PurchaseGenerator.Mix) { self.mix.withLock { $0 = mix } }

    /// Stops new purchases until `resume`.
    func pause() { isPaused.store(true, ordering: .sequentiallyConsistent) }
    func resume() { isPaused.store(false, ordering: .relaxed) }

    /// The addresses to which a client may be sent now.
    var openAddresses: [String] { addresses() }

    func openRequests(at address: String) -> Int { openRequests.withLock { $0[address] ?? 0 } }

    /// Ends new purchases; the apps go on until their posts are accepted.
    func stop() { isOver.store(true, ordering: .sequentiallyConsistent) }

    /// Runs until `stop`, and until every app has its answer or the task is cancelled.
    func run() async {
        let streets = (0..<Self.streets).map { _ in AsyncStream<Void>.makeStream() }
        await withDiscardingTaskGroup { group in
            for street in streets { group.addTask { await self.serve(street.stream) } }
            var next = ContinuousClock.now
            var buyers = 0
            while !isOver.load(ordering: .relaxed), !Task.isCancelled {
                if isPaused.load(ordering: .relaxed) {
                    try? await Task.sleep(for: .milliseconds(20))
                    next = .now
                    continue
                }
                next += .seconds(1 / rate.withLock { $0 })
                try? await Task.sleep(until: next, tolerance: .zero, clock: .continuous)
                guard journal.open < Self.openMax else {
                    journal.surprise("\(Self.openMax) apps wait: the load was held back")
                    next = .now
                    continue
                }
                // The order matters: first the app counts as open, then it looks at the flags. A caller that stops the
                // load and sees no open app can be sure that none comes.
                journal.began()
                guard !isOver.load(ordering: .sequentiallyConsistent), !isPaused.load(ordering: .sequentiallyConsistent)
                else {
                    journal.ended()
                    continue
                }
                streets[buyers % streets.count].continuation.yield()
                buyers += 1
            }
            for street in streets { street.continuation.finish() }
            if Task.isCancelled { group.cancelAll() }
        }
    }

    /// Runs the buyers of a street, each in a task.
    private func serve(_ street: AsyncStream<Void>) async {
        await withDiscardingTaskGroup { group in
            for await _ in street {
                group.addTask {
                    // The buyer counts as open until its last post, also between two posts.
                    defer { self.journal.ended() }
                    await self.buy()
                }
            }
        }
    }

    private func buy() async {
        do {
            let post = try await shop.next(mix.withLock { $0 }, place: place)
            switch post.repetition {
            case .none: await submit(post)
            case .later:
                await submit(post)
                try? await Task.sleep(for: .milliseconds(random.withLock { Int($0.next() % 2000) }))
                await submit(post)
            case .parallel:
                await withDiscardingTaskGroup { group in
                    for _ in 0..<3 { group.addTask { await self.submit(post) } }
                }
            }
            if post.kind == .stolen { await submit(shop.steal(post)) }
            for notification in try await shop.notifications(after: post, mix.withLock { $0 }) {
                for _ in 0..<notification.times { await tell(notification) }
            }
        } catch {
            journal.surprise("no purchase: \(error)")
        }
    }

    /// Posts as one app until a final answer comes: 200 or 202, or 400 for an unreadable post.
    @discardableResult
    func submit(_ post: PurchaseGenerator.Post) async -> UUID? {
        journal.began()
        defer { journal.ended() }
        var tries = 0
        while !Task.isCancelled {
            switch await attempt(post) {
            case .final(let receiptID): return receiptID
            case .again(let wait):
                let jitter = random.withLock { $0.unit() }
                let pause = Self.pauses[min(tries, Self.pauses.count - 1)] * (0.5 + jitter)
                try? await Task.sleep(for: max(pause, wait))
            }
            tries += 1
        }
        return nil
    }

    /// Sends a notification until ingest answers 200, as Apple does.
    private func tell(_ notification: PurchaseGenerator.Notification) async {
        var tries = 0
        while !Task.isCancelled {
            let addresses = self.addresses()
            if !addresses.isEmpty,
                let (status, _, _) = try? await send(
                    notification.body, to: "/v1/apple/notifications", key: nil, at: addresses)
            {
                journal.record(notification, status: status)
                if status == 200 { return }
                if status != 503 { journal.surprise("a notification was answered \(status)") }
            }
            try? await Task.sleep(for: Self.pauses[min(tries, Self.pauses.count - 1)])
            tries += 1
        }
    }

    private enum Outcome {
        case final(UUID?)
        /// Try again, not before Retry-After, where the answer has one.
        case again(after: Duration)
    }

    private func attempt(_ post: PurchaseGenerator.Post) async -> Outcome {
        let addresses = self.addresses()
        let start = ContinuousClock.now
        guard !addresses.isEmpty else {
            journal.record(post, status: 0, receiptID: nil, loss: "no ingest is up", seconds: 0)
            return .again(after: .zero)
        }
        do {
            let (status, id, wait) = try await send(
                post.body, to: "/v1/receipts", key: post.needsClaim ? Access.backend : Access.app, at: addresses)
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            journal.record(post, status: status, receiptID: id, seconds: seconds)
            switch status {
            case 200, 202:
                if id == nil { journal.surprise("\(status) without a receipt's id") }
                return .final(id)
            case 400 where post.isRefused: return .final(nil)
            case 503:
                if wait == nil { journal.surprise("503 without Retry-After") }
                return .again(after: .seconds(wait ?? 0))
            default:
                journal.surprise("\(post.kind.rawValue) was answered \(status)")
                return .again(after: .zero)
            }
        } catch {
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            journal.record(post, status: 0, receiptID: nil, loss: "\(error)", seconds: seconds)
            return .again(after: .zero)
        }
    }

    /// Places an order, repeated until ingest acknowledges it; returns its id. Nil if the load was cancelled.
    private func place(user: String, product: String, key: String) async -> UUID? {
        let body = Array(
            """
            {"appId":"\(PurchaseGenerator.app)","userId":"\(user)","productId":"\(product)","idempotencyKey":"\(key)"}
            """.utf8)
        while !Task.isCancelled {
            let addresses = self.addresses()
            if !addresses.isEmpty,
                let (status, id, _) = try? await send(body, to: "/v1/orders", key: Access.app, at: addresses)
            {
                if status == 200 || status == 201, let id { return id }
                if status != 503 { journal.surprise("an order was answered \(status)") }
            }
            try? await Task.sleep(for: Self.pauses[2])
        }
        return nil
    }

    /// Sends one request to one of the addresses. `wait`: the seconds that Retry-After names.
    func send(
        _ body: [UInt8], method: HTTPMethod = .POST, to path: String, key: String?, at addresses: [String]
    ) async throws -> (status: Int, id: UUID?, wait: Int?) {
        let (address, pool) = random.withLock { random in
            (addresses[Int(random.next() % UInt64(addresses.count))], pools[Int(random.next() % UInt64(pools.count))])
        }
        openRequests.withLock { $0[address, default: 0] += 1 }
        defer { openRequests.withLock { $0[address, default: 0] -= 1 } }
        var request = HTTPClientRequest(url: address + path)
        request.method = method
        request.headers.add(name: "Content-Type", value: "application/json")
        if let key { request.headers.add(name: "Authorization", value: "Bearer \(key)") }
        request.body = .bytes(ByteBuffer(bytes: body))
        let response = try await pool.execute(request, timeout: patience.withLock { $0 })
        let answer = try await response.body.collect(upTo: 1 << 20)
        let object = try? JSONSerialization.jsonObject(with: Data(answer.readableBytesView)) as? [String: Any]
        return (
            Int(response.status.code), (object?["id"] as? String).flatMap(UUID.init(uuidString:)),
            response.headers.first(name: "retry-after").flatMap { Int($0) }
        )
    }
}

/// The access keys of a drill's deployment.
enum Access {
    /// The key of the apps' gateway.
    static let app = "app-key-of-the-drill"
    /// The key of a trusted backend that vouches for its users.
    static let backend = "backend-key-of-the-drill"
}
