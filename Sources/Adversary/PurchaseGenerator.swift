import AppStoreSimulator
import Crypto
import Foundation
import Ledger
import Synchronization

/// The generator of purchases and posts: players and their apps mostly behave as they should, sometimes not. Only this
/// object knows which purchases are valid; the invariants compare them with the database.
final class PurchaseGenerator: Sendable {
    /// Something one app posts, perhaps often.
    struct Post: Sendable {
        enum Kind: String, Sendable, CaseIterable {
            case signed, ordered, period, receipt, identifier, refunded, foreignRoot, wrongBundle, garbage, unreadable
            case stolen
        }

        /// The client's key of this submission.
        var submission: String
        let kind: Kind
        let userID: String
        let transactionID: String?
        let proofSHA256: [UInt8]?
        var body: [UInt8]
        /// How often the app sends the post: once, a second time later, or three times at once.
        var repetition: Repetition

        enum Repetition: Sendable { case none, later, parallel }

        /// Whether the post needs a trusted backend's key: no other caller may ask about a bare id with success.
        var needsClaim: Bool { kind == .identifier }
        /// Whether ingest answers 400 and stores nothing.
        var isRefused: Bool { kind == .unreadable }

        /// Puts members, written as JSON, before those of the body.
        mutating func say(_ members: String) {
            body = [UInt8(ascii: "{")] + members.utf8 + [UInt8(ascii: ",")] + body.dropFirst()
        }
    }

    /// One notification that Apple sends by itself.
    struct Notification: Sendable {
        let transactionID: String
        let body: [UInt8]
        /// How often Apple sends the notification.
        let times: Int
    }

    /// Shares in percent; the rest are plain signed transactions.
    struct Mix: Sendable {
        var ordered = 6.0
        var period = 3.0
        var receipt = 4.0
        var identifier = 2.0
        var refunded = 5.0
        var invalid = 5.0
        var stolen = 1.0
        var repeated = 10.0
        /// The plain purchases that Apple takes back after the post. Apple gives every second one of these back.
        var takenBack = 4.0

        init() {}

        static let plain: Mix = {
            var mix = Mix()
            (mix.ordered, mix.period, mix.receipt, mix.identifier) = (0, 0, 0, 0)
            (mix.refunded, mix.invalid, mix.stolen, mix.repeated, mix.takenBack) = (0, 0, 0, 0, 0)
            return mix
        }()
    }

    static let app = "game"
    static let bundle = "com.example.game"
    static let appleID: Int64 = 1_234_567_890
    static let product = "com.example.game.coins6"
    static let subscription = "com.example.game.vip"

    /// A subscription that a user has.
    private struct Chain {
        let userID: String
        let originalID: String
        var periods = 1
    }

    private struct State {
        var random: SplitMix64
        var count = 0
        var sales: [Witness.Sale] = []
        var chains: [Chain] = []
    }

    let store: AppStoreSimulator
    private let state: Mutex<State>

    init(store: AppStoreSimulator, seed: UInt64) {
        self.store = store
        state = Mutex(State(random: SplitMix64(seed: seed)))
    }

    /// Everything that was sold or forged.
    var sales: [Witness.Sale] { state.withLock { $0.sales } }

    /// The next post of the load.
    ///
    /// - Parameter place: places an order of the user for this product; the same key gives the same order again.
    func next(_ mix: Mix, place: (_ user: String, _ product: String, _ key: String) async -> UUID?) async throws -> Post
    {
        let (number, kind, repetition) = state.withLock { state in
            state.count += 1
            let kind = Self.kind(&state.random, mix)
            let dice = state.random.unit() * 100
            let repetition: Post.Repetition =
                dice < mix.repeated / 2 ? .later : dice < mix.repeated ? .parallel : .none
            return (state.count, kind, repetition)
        }
        let user = "u\(number)"
        let order = kind == .ordered ? await place(user, Self.product, "o\(number)") : nil
        // The user who is logged in at the post may be another one than the user who ordered.
        let poster = order != nil && number % 2 == 1 ? "friend-of-\(user)" : user
        var post = try await make(kind, number, user: user, poster: poster, order: order)
        post.repetition = repetition
        return post
    }

    /// One post of a kind, by a user of the drill's own.
    ///
    /// - Parameters:
    ///   - order: the order of the user whose id the purchase carries.
    ///   - token: the token that the purchase carries; it is registered for the user.
    func make(_ kind: Post.Kind, user: String, order: UUID? = nil, token: UUID? = nil) async throws -> Post {
        let number = state.withLock { state in
            state.count += 1
            return state.count
        }
        return try await make(kind, number, user: user, poster: user, order: order, token: token)
    }

    private static func kind(_ random: inout SplitMix64, _ mix: Mix) -> Post.Kind {
        var dice = random.unit() * 100
        let invalid: [Post.Kind] = [.foreignRoot, .wrongBundle, .garbage, .unreadable]
        for (share, kind) in [
            (mix.ordered, Post.Kind.ordered), (mix.period, .period), (mix.receipt, .receipt),
            (mix.identifier, .identifier), (mix.refunded, .refunded),
            (mix.stolen, .stolen), (mix.invalid, invalid[Int(random.next() % 4)]),
        ] {
            if dice < share { return kind }
            dice -= share
        }
        return .signed
    }

    private func make(
        _ kind: Post.Kind, _ number: Int, user: String, poster: String, order: UUID?, token: UUID? = nil
    ) async throws -> Post {
        switch kind {
        case .foreignRoot, .wrongBundle:
            var request = ForgeryRequest(
                kind: kind == .foreignRoot ? .foreignRoot : .wrongBundle, app: Self.bundle, productId: Self.product)
            if kind == .wrongBundle { request.bundleId = "com.example.other" }
            return post(kind, number, user, nil, proof: try store.forge(request))
        case .garbage:
            // The text has the three parts of a JWS in base64url, without any content.
            let part = Data("garbage \(number)".utf8).base64EncodedString().replacing("=", with: "")
            return post(kind, number, user, nil, proof: "\(part).\(part).\(part)")
        case .unreadable:
            return Post(
                submission: "s\(number)", kind: kind, userID: user, transactionID: nil, proofSHA256: nil,
                body: Array("{\"userId\": \"\(user)\", ".utf8), repetition: .none)
        case .period: return try await sellPeriod(number, user)
        case .signed, .ordered, .receipt, .identifier, .refunded, .stolen:
            return try await sell(kind, number, user, poster, order, token)
        }
    }

    private func sell(
        _ kind: Post.Kind, _ number: Int, _ user: String, _ poster: String, _ order: UUID?, _ token: UUID?
    ) async throws -> Post {
        var request = SaleRequest(app: Self.bundle, productId: Self.product, quantity: 1 + number % 3)
        request.appAccountToken = (order ?? token)?.uuidString
        request.receipts = kind == .receipt
        let sale = try await store.sell(request)[0]
        let id = sale.purchase.transactionId
        var proof: String? = kind == .receipt ? sale.receipt : sale.signedTransaction
        if kind == .identifier { proof = nil }
        var revokedAt: Date?
        if kind == .refunded {
            _ = try store.refund(id)
            revokedAt = .now
            proof = try store.sign(id)
        }
        note(
            sale.purchase, owner: kind == .stolen ? nil : user, order: order, isValid: kind != .refunded,
            revokedAt: revokedAt)
        return post(kind, number, poster, id, proof: proof)
    }

    /// Sells the first period of a subscription, or the next period of an existing one.
    private func sellPeriod(_ number: Int, _ user: String) async throws -> Post {
        let chain = state.withLock { state -> Chain? in
            guard number % 2 == 1, !state.chains.isEmpty else { return nil }
            let index = Int(state.random.next() % UInt64(state.chains.count))
            state.chains[index].periods += 1
            return state.chains[index]
        }
        let owner = chain?.userID ?? user
        var request = SaleRequest(app: Self.bundle, productId: Self.subscription, type: .autoRenewable)
        request.receipts = false
        request.originalTransactionId = chain?.originalID
        // Each period needs an end of its own: two with the same end would be one purchase.
        request.expiresDate = chain.map {
            Int64(Date.now.timeIntervalSince1970 * 1000) + Int64($0.periods) * 30 * 86_400_000
        }
        let sale = try await store.sell(request)[0]
        let id = sale.purchase.transactionId
        note(sale.purchase, owner: owner, order: nil, isValid: true, revokedAt: nil)
        if chain == nil { state.withLock { $0.chains.append(Chain(userID: owner, originalID: id)) } }
        return post(.period, number, owner, id, proof: sale.signedTransaction)
    }

    // MARK: What Apple tells by itself

    /// The notifications that Apple sends after a post, in any order, some of them twice: about a purchase that Apple
    /// took back, and perhaps gave back; about a period after the posted one that no app posts.
    func notifications(after post: Post, _ mix: Mix) async throws -> [Notification] {
        let (dice, doubled, isReversed) = state.withLock { state in
            (state.random.unit() * 100, state.random.next() % 4 == 0, state.random.next() % 2 == 0)
        }
        var told: [Notification] = []
        switch post.kind {
        case .signed where dice < mix.takenBack:
            guard let id = post.transactionID else { break }
            _ = try store.refund(id)
            try told.append(notification("REFUND", about: id, times: doubled ? 2 : 1))
            if isReversed {
                // Apple signs the reversal later than the refund.
                try await Task.sleep(for: .milliseconds(2))
                _ = try store.reverseRefund(id)
                try told.append(notification("REFUND_REVERSED", about: id, times: 1))
            } else {
                state.withLock { state in
                    guard let index = state.sales.lastIndex(where: { $0.transactionID == id }) else { return }
                    state.sales[index].revokedAt = .now
                }
            }
        case .period where dice < 50 && mix.takenBack > 0:
            guard let id = try await sellPeriodNobodyPosts(after: post) else { break }
            try told.append(notification("DID_RENEW", about: id, times: doubled ? 2 : 1))
        default: break
        }
        return state.withLock { told.shuffled(using: &$0.random) }
    }

    private func sellPeriodNobodyPosts(after post: Post) async throws -> String? {
        let chain = state.withLock { state -> Chain? in
            guard let index = state.chains.firstIndex(where: { $0.userID == post.userID }) else { return nil }
            state.chains[index].periods += 1
            return state.chains[index]
        }
        guard let chain else { return nil }
        var request = SaleRequest(app: Self.bundle, productId: Self.subscription, type: .autoRenewable)
        request.receipts = false
        request.originalTransactionId = chain.originalID
        request.expiresDate = Int64(Date.now.timeIntervalSince1970 * 1000) + Int64(chain.periods) * 30 * 86_400_000
        let sale = try await store.sell(request)[0]
        note(sale.purchase, owner: chain.userID, order: nil, isValid: true, revokedAt: nil)
        return sale.purchase.transactionId
    }

    private func notification(_ type: String, about id: String, times: Int) throws -> Notification {
        let (_, payload) = try store.hold(
            NotificationRequest(app: Self.bundle, notificationType: type, transactionId: id))
        return Notification(transactionID: id, body: Array("{\"signedPayload\":\"\(payload)\"}".utf8), times: times)
    }

    private func note(_ purchase: Purchase, owner: String?, order: UUID?, isValid: Bool, revokedAt: Date?) {
        let sale = Witness.Sale(
            transactionID: purchase.transactionId, appID: Self.app, environment: purchase.environment.rawValue,
            productID: purchase.productId, quantity: purchase.quantity, userID: owner, orderID: order,
            isValid: isValid, revokedAt: revokedAt)
        state.withLock { $0.sales.append(sale) }
    }

    /// The same purchase, posted by another user.
    func steal(_ post: Post) -> Post {
        var body = String(decoding: post.body, as: UTF8.self)
        body = body.replacing("\"userId\":\"\(post.userID)\"", with: "\"userId\":\"thief-of-\(post.userID)\"")
        return Post(
            submission: post.submission + "-stolen", kind: post.kind, userID: "thief-of-\(post.userID)",
            transactionID: post.transactionID, proofSHA256: post.proofSHA256, body: Array(body.utf8), repetition: .none)
    }

    private func post(
        _ kind: Post.Kind, _ number: Int, _ user: String, _ id: String?, proof: String?
    ) -> Post {
        var fields = ["\"appId\":\"\(Self.app)\"", "\"userId\":\"\(user)\""]
        if let proof {
            fields.append("\"\(kind == .receipt ? "receipt" : "signedTransaction")\":\"\(proof)\"")
        } else if let id {
            fields.append("\"transactionId\":\"\(id)\"")
        }
        return Post(
            submission: "s\(number)", kind: kind, userID: user, transactionID: id,
            proofSHA256: proof.map { Array(SHA256.hash(data: Data($0.utf8))) },
            body: Array("{\(fields.joined(separator: ","))}".utf8), repetition: .none)
    }
}
