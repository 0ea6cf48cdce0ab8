import AppStoreSimulator
import Crypto
import Foundation
import Reconciliation
import Synchronization

/// What players buy and how their apps post it: mostly as they should, sometimes not. Which of it is valid is known
/// here and nowhere else, and ends in the ledger that the invariants are held against.
final class Shop: Sendable {
    /// Something one app posts, perhaps often.
    struct Post: Sendable {
        enum Kind: String, Sendable, CaseIterable {
            case signed, receipt, identifier, refunded, foreignRoot, wrongBundle, garbage, unreadable, stolen
        }

        /// The client's key of this submission.
        let submission: String
        let kind: Kind
        let userID: String
        let transactionID: String?
        let proofSHA256: [UInt8]?
        let body: [UInt8]
        /// Sends it three times at once, or a second time later.
        var repetition: Repetition

        enum Repetition: Sendable { case none, later, parallel }

        /// A bare id is a question that only a trusted backend's key may ask with success.
        var needsClaim: Bool { kind == .identifier }
        /// The door answers 400 and stores nothing.
        var isRefused: Bool { kind == .unreadable }
    }

    /// Shares of a hundred; the rest are plain signed transactions.
    struct Mix: Sendable {
        var receipt = 4.0
        var identifier = 2.0
        var refunded = 5.0
        var invalid = 5.0
        var stolen = 1.0
        var repeated = 10.0

        init() {}

        static let plain: Mix = {
            var mix = Mix()
            (mix.receipt, mix.identifier, mix.refunded, mix.invalid, mix.stolen, mix.repeated) = (0, 0, 0, 0, 0, 0)
            return mix
        }()
    }

    static let app = "game"
    static let bundle = "com.example.game"
    static let appleID: Int64 = 1_234_567_890
    static let product = "com.example.game.coins6"

    private struct State {
        var random: SplitMix64
        var count = 0
        var sales: [Witness.Sale] = []
        /// To be taken back by Apple a little after they were posted.
        var refundable: [String] = []
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
    func next(_ mix: Mix) async throws -> Post {
        let (number, kind, repetition) = state.withLock { state in
            state.count += 1
            let kind = Self.kind(&state.random, mix)
            let dice = state.random.unit() * 100
            let repetition: Post.Repetition =
                dice < mix.repeated / 2 ? .later : dice < mix.repeated ? .parallel : .none
            return (state.count, kind, repetition)
        }
        var post = try await make(kind, number, user: "u\(number)")
        post.repetition = repetition
        return post
    }

    /// One post of a kind, by a user of a drill's own.
    func make(_ kind: Post.Kind, user: String) async throws -> Post {
        let number = state.withLock { state in
            state.count += 1
            return state.count
        }
        return try await make(kind, number, user: user)
    }

    private static func kind(_ random: inout SplitMix64, _ mix: Mix) -> Post.Kind {
        var dice = random.unit() * 100
        let invalid: [Post.Kind] = [.foreignRoot, .wrongBundle, .garbage, .unreadable]
        for (share, kind) in [
            (mix.receipt, Post.Kind.receipt), (mix.identifier, .identifier), (mix.refunded, .refunded),
            (mix.stolen, .stolen), (mix.invalid, invalid[Int(random.next() % 4)]),
        ] {
            if dice < share { return kind }
            dice -= share
        }
        return .signed
    }

    private func make(_ kind: Post.Kind, _ number: Int, user: String) async throws -> Post {
        switch kind {
        case .foreignRoot, .wrongBundle:
            var request = ForgeryRequest(
                kind: kind == .foreignRoot ? .foreignRoot : .wrongBundle, app: Self.bundle, productId: Self.product)
            if kind == .wrongBundle { request.bundleId = "com.example.other" }
            return post(kind, number, user, nil, proof: try store.forge(request))
        case .garbage:
            // Three parts of base64url, and nothing in them.
            let part = Data("garbage \(number)".utf8).base64EncodedString().replacing("=", with: "")
            return post(kind, number, user, nil, proof: "\(part).\(part).\(part)")
        case .unreadable:
            return Post(
                submission: "s\(number)", kind: kind, userID: user, transactionID: nil, proofSHA256: nil,
                body: Array("{\"userId\": \"\(user)\", ".utf8), repetition: .none)
        case .signed, .receipt, .identifier, .refunded, .stolen: return try await sell(kind, number, user)
        }
    }

    private func sell(_ kind: Post.Kind, _ number: Int, _ user: String) async throws -> Post {
        var request = SaleRequest(app: Self.bundle, productId: Self.product, quantity: 1 + number % 3)
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
        state.withLock { state in
            state.sales.append(
                Witness.Sale(
                    transactionID: id, appID: Self.app, environment: sale.purchase.environment.rawValue,
                    productID: sale.purchase.productId, quantity: sale.purchase.quantity,
                    userID: kind == .stolen ? nil : user, isValid: kind != .refunded, revokedAt: revokedAt))
        }
        return post(kind, number, user, id, proof: proof)
    }

    /// The same purchase, posted by somebody else.
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
