import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a refunded product that is bought again is given, in every order of the two posts and the refund (S3-46). A
/// rejection because of a refund does not outlive the refund (S3-44). Method: the real transactions, and a worker of a
/// few lines that judges as the services' worker does: by the evidence, then behind the gate.
@Suite(.timeLimit(.minutes(8))) struct RefundOrderTests {
    private static let policy = AppPolicy(
        id: "game", grantFrom: .distantPast, makeUpMaxAge: .zero,
        products: [
            .init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins),
            .init(id: "sword", kind: .nonConsumable, goods: Verdict.Entry.coins),
            .init(id: "pass", kind: .autoRenewable, goods: Verdict.Entry.coins),
        ])

    /// A post, with the proof that it shows.
    private struct Post {
        let posted: Posted
        let proof: Transaction
    }

    /// Judges a receipt as it is now. Nil: it is settled, or has to be judged anew.
    private static func judge(_ post: Post, in lab: LedgerLab) async throws -> ReceiptState? {
        guard let stored = try await lab.ledger.fetch(post.posted.id), !stored.state.isEnded else { return nil }
        let claim = Claim(userID: stored.userID, hasPossession: true, receivedAt: LedgerLab.bought + 7200)
        let evidence = try await lab.evidence(
            lab.question(post.proof, by: stored.userID, isOneOfSeveral: false))[0]
        return try await lab.settle(
            post.posted, attempt: stored.attempt, policy.judge(post.proof, claim: claim, evidence: evidence))
    }

    /// Judges and follows up until nothing is open and no chain is marked.
    private static func work(_ posts: [Post], in lab: LedgerLab) async throws {
        for _ in 0..<8 {
            for post in posts { _ = try await judge(post, in: lab) }
            let isAtRest = try await lab.followUp().chains == 0
            if isAtRest, try await lab.number("select count(*) from receipts where settled_at is null") == 0 { return }
        }
        Issue.record("it never comes to rest")
    }

    @Test(
        "every order of post, refund and repurchase, of each kind: the repurchase is given, and the refund taken back")
    func everyOrder() async throws {
        let kinds: [(product: String, kind: Transaction.Kind)] = [
            ("coins", .consumable), ("sword", .nonConsumable), ("pass", .autoRenewable),
        ]
        try await LedgerLab.with { lab in
            for (product, kind) in kinds {
                for (number, order) in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].enumerated() {
                    let name = "\(product)\(number)"
                    func purchase(_ id: String, after seconds: Double) -> Transaction {
                        let original = kind == .consumable ? "\(name)-\(id)" : "\(name)-1"
                        return Verdict.Entry.purchase("\(name)-\(id)", of: original, kind: kind) {
                            $0.productID = product
                            $0.purchasedAt += seconds
                            $0.expiresAt = kind == .autoRenewable ? $0.purchasedAt + 86_400 : nil
                        }.transaction
                    }
                    let (first, second) = (purchase("1", after: 0), purchase("2", after: 3600))
                    var posts: [Post] = []
                    for step in order {
                        switch step {
                        case 0: posts.append(Post(posted: try await lab.post("u1"), proof: first.signed(10)))
                        case 1: try await lab.hear(first.refunded(60))
                        default: posts.append(Post(posted: try await lab.post("u1"), proof: second.signed(10)))
                        }
                        try await Self.work(posts, in: lab)
                    }
                    let standing = try await lab.texts(
                        """
                        select transaction_id from grants g where transaction_id like '\(name)-%' and not exists (
                          select from revocations r where r.transaction_id = g.transaction_id)
                        """)
                    #expect(standing == ["\(name)-2"], "\(product) \(order)")
                    let isFirstGiven =
                        order.firstIndex(of: 0)! < order.firstIndex(of: 1)!
                        && !(kind == .nonConsumable && order.firstIndex(of: 2)! < order.firstIndex(of: 0)!)
                    #expect(
                        try await lab.revocations.filter { $0.hasPrefix("\(name)-1 ") }
                            == (isFirstGiven ? ["\(name)-1 1 revoked refunded 100000 60"] : []), "\(product) \(order)")
                }
            }
        }
    }

    @Test(
        "S3-44: a refund that was undone while a worker judged by it: the verdict is not written, and the next one gives"
    )
    func undoneMeanwhile() async throws {
        try await LedgerLab.with { lab in
            for (id, kind) in [("c", Transaction.Kind.consumable), ("n", .nonConsumable)] {
                let bought = Verdict.Entry.purchase(id, kind: kind) {
                    $0.productID = kind == .consumable ? "coins" : "sword"
                }.transaction
                let post = Post(posted: try await lab.post(), proof: bought.refunded(60))
                let stale = Self.policy.judge(
                    post.proof, claim: Claim(userID: "u1", hasPossession: true, receivedAt: .now), evidence: .none)
                #expect(stale.decision == .rejected(.refunded))
                try await lab.hear(bought.signed(90))
                #expect(try await lab.settle(post.posted, stale) == nil)
                #expect(try await lab.state(post.posted) == "received")
                #expect(try await Self.judge(post, in: lab) == .granted)
                // An older proof that stands says nothing against a refund that was told later.
                let refunded = Post(
                    posted: try await lab.post(),
                    proof: Verdict.Entry.purchase(id + "2", kind: kind) {
                        $0.productID = bought.productID
                    }.transaction.refunded(60))
                try await lab.hear(refunded.proof.signed(10) { $0.revokedAt = nil })
                #expect(try await Self.judge(refunded, in: lab) == .rejected)
            }
            try await lab.followUp()
            #expect(try await lab.revocations == [])
        }
    }

    @Test("S3-44: a reversal gives what was rejected for the refund to its poster")
    func reversed() async throws {
        try await LedgerLab.with { lab in
            let bought = Verdict.Entry.purchase("t1").transaction
            try await lab.hear(bought.refunded(60))
            // One shows the purchase from before the refund, one from after it.
            let posts = [
                Post(posted: try await lab.post("u1"), proof: bought.signed(10)),
                Post(posted: try await lab.post("u2"), proof: bought.refunded(70)),
            ]
            try await Self.work(posts, in: lab)
            for post in posts { #expect(try await lab.state(post.posted) == "rejected refunded") }
            try await lab.hear(bought.signed(90))
            try await Self.work(posts, in: lab)
            #expect(try await lab.grants == ["t1 u1"])
            #expect(try await lab.state(posts[1].posted) == "already_granted owned_by_another_user")
            #expect(try await lab.revocations == [])
        }
    }
}
