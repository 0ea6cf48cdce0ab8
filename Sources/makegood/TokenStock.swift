import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1

/// Signed transactions ready to be posted, fetched ahead of time so that nobody waits for a purchase to be made.
actor TokenStock {
    /// Tokens fetched at a time: about 4 MB.
    static let batch = 1000
    /// Below so many the next batch is fetched.
    private static let lowWater = 2000

    struct Token: Sendable {
        /// From 0, in the order they are taken.
        let number: Int
        let text: String
    }

    /// Gives up to so many tokens; fewer than asked for: these are the last. Off this actor: reading a batch takes
    /// milliseconds, which the senders must not wait for.
    typealias Source = @concurrent @Sendable (Int) async throws -> [String]

    private let source: Source
    private let limit: Int
    private var tokens: [String] = []
    private var taken = 0
    /// Tokens handed out before `tokens[0]`.
    private var dropped = 0
    private var fetch: Task<Void, Never>?
    private var isAtEnd = false
    /// Somebody asked for a token when the source had no more.
    private(set) var isUsedUp = false
    private(set) var failure: (any Error)?
    /// How often somebody had to wait for a token: the source was slower than the load.
    private(set) var waits = 0

    /// - Parameter limit: no more than so many are fetched.
    init(limit: Int, source: @escaping Source) {
        self.limit = limit
        self.source = source
    }

    /// Fetches until there is enough for a start.
    func fill() async {
        while !isClosed && tokens.count < min(Self.lowWater, limit) { await fetchMore() }
    }

    /// The next token; nil when there are no more (``isUsedUp``, ``failure`` or the limit say why).
    func next() async -> Token? {
        while true {
            let index = taken - dropped
            if index < tokens.count {
                defer { trim() }
                taken += 1
                if tokens.count - index <= Self.lowWater, !isClosed, fetch == nil { startFetch() }
                return Token(number: taken - 1, text: tokens[index])
            }
            if isClosed {
                isUsedUp = isAtEnd
                return nil
            }
            waits += 1
            await fetchMore()
        }
    }

    /// Ends a fetch that nobody needs any more.
    func close() {
        fetch?.cancel()
    }

    private var isClosed: Bool { isAtEnd || failure != nil || dropped + tokens.count >= limit }

    private func fetchMore() async {
        if fetch == nil { startFetch() }
        await fetch?.value
    }

    private func startFetch() {
        let count = min(Self.batch, limit - dropped - tokens.count)
        fetch = Task {
            do {
                let more = try await source(count)
                tokens.append(contentsOf: more)
                if more.count < count { isAtEnd = true }
            } catch {
                failure = error
            }
            fetch = nil
        }
    }

    /// Lets go of what was handed out, a batch at a time.
    private func trim() {
        guard taken - dropped >= Self.batch else { return }
        tokens.removeSubrange(..<(taken - dropped))
        dropped = taken
    }
}

/// The simulator's till: buys a batch of purchases with one call.
struct SimulatorTill: Sendable {
    private static let timeout = TimeAmount.seconds(60)
    /// Bytes of an answer: 1,000 tokens take about 5 MB.
    private static let answerBytesMax = 64 << 20

    let http: HTTPClient
    let address: LoadAddress
    let bundleId: String
    let product: String
    let environment: String

    private struct Order: Encodable {
        let app: String
        let productId: String
        let environment: String
        let count: Int
        let receipts = false
    }

    private struct Sales: Decodable {
        struct Sale: Decodable {
            let signedTransaction: String
        }
        let purchases: [Sale]
    }

    func buy(_ count: Int) async throws -> [String] {
        var request = HTTPClientRequest(url: "\(address.base)/control/purchases")
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        let order = Order(app: bundleId, productId: product, environment: environment, count: count)
        request.body = .bytes(ByteBuffer(bytes: try JSONEncoder().encode(order)))
        let response = try await http.execute(request, timeout: Self.timeout)
        let body = Data(try await response.body.collect(upTo: Self.answerBytesMax).readableBytesView)
        guard response.status == .created, let sales = try? JSONDecoder().decode(Sales.self, from: body) else {
            let said = String(decoding: body.prefix(200), as: UTF8.self)
            throw UnusableInput("the simulator answered \(response.status.code): \(said)")
        }
        return sales.purchases.map(\.signedTransaction)
    }
}
