import AppStoreSimulator
import Foundation
import Postgres
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings

/// Goal: if a buyer and a thief show a purchase at the same moment, the rules decide the owner, whichever verdict is
/// written first: with a proof the buyer, else the first poster, and then the other keeps a copy and both are told.
/// Method: both posts are judged on a real ledger before either verdict is written. Then both verdicts go into one
/// settle transaction, or two sessions write one each and commit in either order; a receipt that stays open is judged
/// again, as the scheduler would have it judged.
@Suite(.timeLimit(.minutes(8))) struct BothAtOnceTests {
    /// The evidence for the buyer.
    fileprivate enum Means: CaseIterable {
        case nothing, openOrder, orderToken, registeredToken
        /// A renewal in the buyer's chain; a token with which the buyer alone was given purchases; a purchase that
        /// another customer shares.
        case renewal, rememberedToken, shared

        var isProof: Bool { [.orderToken, .registeredToken, .renewal].contains(self) }
        var product: String { self == .renewal || self == .shared ? "pass" : "coins" }
    }

    /// What the thief posts beside the captured proof.
    fileprivate enum Theft: CaseIterable {
        case nothing, ownOrder, victimsOrder, recordOfVictim

        /// Whether the thief's own post says that the purchase is not the thief's.
        var namesVictim: Bool { self == .victimsOrder || self == .recordOfVictim }
    }

    fileprivate enum Way: CaseIterable { case oneBatch, oneBatchTurned, thiefCommitsFirst, victimCommitsFirst }

    fileprivate static let cases: [(means: Means, theft: Theft)] = Means.allCases.flatMap { means in
        Theft.allCases.filter { theft in
            switch theft {
            case .nothing, .ownOrder: true
            case .victimsOrder: ![.renewal, .rememberedToken, .shared].contains(means)
            case .recordOfVictim: means == .nothing
            }
        }
        .map { (means: means, theft: $0) }
    }

    @Test("S14: a buyer and a thief at once, in one batch and in two sessions: the rules decide, not the order")
    func atOnce() async throws {
        #expect(Self.cases.count * Way.allCases.count == 76)
        try await VerifyLab.with { lab in
            let configuration = try lab.configuration(
                products: "{id: pass, type: autoRenewable, goods: [{item: vip, amount: 1}]}")
            let policy = try #require(configuration.apps[VerifyLab.appID]).policy
            let contest = Contest(
                lab: lab, app: try await lab.app { $0 = policy }, receiptVerifier: lab.receiptVerifier(),
                processor: try await lab.processor(configuration))
            for (means, theft) in Self.cases {
                for way in Way.allCases { try await contest.play(means, theft, way) }
            }
        }
    }
}

private struct Contest {
    let lab: VerifyLab
    let app: AppServices
    let receiptVerifier: ReceiptVerifier
    let processor: ReceiptProcessor

    private var ledger: LedgerLab { lab.lab }

    func play(_ means: BothAtOnceTests.Means, _ theft: BothAtOnceTests.Theft, _ way: BothAtOnceTests.Way) async throws {
        let about: Comment = "\(means), thief with \(theft), \(way)"
        let suffix = UUID().uuidString.prefix(8)
        let (victim, thief) = ("victim-\(suffix)", "thief-\(suffix)")
        let (sale, hers, his) = try await post(means, theft, victim, thief)
        let id = sale.purchase.transactionId
        try await write(try await verdict(hers), try await verdict(his), way, about)
        for receipt in [his, hers] {
            let row = try #require(try await ledger.ledger.fetch(receipt))
            guard !row.state.isEnded else { continue }
            let message = Array(Pointer(receiptID: row.id, attempt: row.attempt).text.utf8)
            #expect(await processor.process(message, redelivered: false) == .done, about)
        }

        let grants = try await ledger.texts(
            "select user_id || ' ' || binding_source from grants where transaction_id = '\(id)'")
        let words = (grants.first ?? "").split(separator: " ").map(String.init)
        guard grants.count == 1, words.count == 2, let source = BindingSource(rawValue: words[1]) else {
            Issue.record("\(about): granted \(grants)")
            return
        }
        let owner = words[0]
        // The token points to another user: without an order of the thief's own, the thief's post waits for the
        // buyer's.
        let isHeld = means == .rememberedToken && theft == .nothing
        if means.isProof || theft.namesVictim || isHeld || way == .victimCommitsFirst {
            #expect(owner == victim, about)
        } else if way == .thiefCommitsFirst {
            #expect(owner == thief, about)
        }
        #expect(source.isProof == means.isProof, about)

        let (won, lost) = owner == thief ? (his, hers) : (hers, his)
        let winner = try #require(try await ledger.ledger.view(won))
        #expect(winner.state.isEnded && winner.transactions.map(\.isOwn) == [true], about)
        #expect(winner.transactions.map(\.isDisputed) == [nil], about)
        let loser = try #require(try await ledger.ledger.view(lost))
        #expect(loser.state == .alreadyGranted && loser.reason == "owned_by_another_user", about)
        #expect(loser.transactions.map(\.isOwn) == [false], about)
        #expect(loser.transactions.map(\.isDisputed) == [source.isProof ? nil : true], about)
        #expect(loser.transactions.allSatisfy { ($0.safeAt == nil) == source.isProof && $0.goods == nil }, about)

        let told = try await ledger.texts(
            "select type || ' ' || user_id from events where transaction_id = '\(id)' order by 1")
        // A record itself names the buyer, so that there is no dispute. A shared purchase is nobody's own: the loser
        // keeps the copy, and nobody is told.
        let isDisputed = !source.isProof && source != .record && source != .shared
        #expect(
            told == (isDisputed ? ["ownership.disputed \(thief)", "ownership.disputed \(victim)"] : [])
                + ["purchase.granted \(owner)"],
            about)
    }

    /// Stores the evidence of both users, the sale, and the two posts of it.
    private func post(
        _ means: BothAtOnceTests.Means, _ theft: BothAtOnceTests.Theft, _ victim: String, _ thief: String
    ) async throws -> (sale: Sale, hers: UUID, his: UUID) {
        var token: UUID?
        var victimsOrder: UUID?
        if means == .openOrder || means == .orderToken || theft == .victimsOrder {
            victimsOrder = try await place(victim, minutesAgo: 2)
        }
        if means == .orderToken { token = victimsOrder }
        if means == .registeredToken {
            let registered = UUID()
            try await ledger.run(
                """
                insert into user_tokens (app_id, token, user_id, source)
                values ('game', '\(registered)', '\(victim)', 'registered')
                """)
            token = registered
        }
        var chain: String?
        switch means {
        case .renewal: chain = try await given(victim, means.product)
        case .rememberedToken:
            let used = UUID()
            try await given(victim, means.product, with: used)
            token = used
        case .nothing, .openOrder, .orderToken, .registeredToken, .shared: break
        }
        // The victim is known here, by an order that does not fit the purchase.
        if theft == .recordOfVictim { try await place(victim, product: "gems", minutesAgo: 2) }
        let named: UUID? =
            switch theft {
            case .nothing, .recordOfVictim: nil
            case .ownOrder: try await place(thief, product: means.product, minutesAgo: 1)
            case .victimsOrder: victimsOrder
            }
        let sale = try await lab.sell {
            $0.productId = means.product
            $0.appAccountToken = token?.uuidString.lowercased()
            guard means.product == "pass" else { return }
            $0.type = .autoRenewable
            $0.originalTransactionId = chain
            if means == .shared { $0.inAppOwnershipType = "FAMILY_SHARED" }
        }
        let proof = Proof.signedTransaction(sale.signedTransaction)
        let hers = Submission(appID: VerifyLab.appID, userID: victim, proof: proof)
        let his = Submission(
            appID: VerifyLab.appID, userID: thief, orderID: named?.uuidString, proof: proof,
            declared: theft == .recordOfVictim ? Declaration(uid: victim) : nil)
        for submission in [hers, his] { #expect(try await ledger.ledger.insert(submission)) }
        return (sale, hers.receiptID, his.receiptID)
    }

    /// Gives the user a purchase of three days ago.
    ///
    /// - Returns: its transaction id.
    @discardableResult
    private func given(_ user: String, _ product: String, with token: UUID? = nil) async throws -> String {
        let sale = try await lab.sell {
            $0.productId = product
            $0.appAccountToken = token?.uuidString.lowercased()
            $0.purchaseDate = Int64(Date(timeIntervalSinceNow: -3 * 86_400).timeIntervalSince1970 * 1000)
            if product == "pass" { $0.type = .autoRenewable }
        }
        let post = Submission(appID: VerifyLab.appID, userID: user, proof: .signedTransaction(sale.signedTransaction))
        #expect(try await ledger.ledger.insert(post))
        let written = try await verdict(post.receiptID)
        #expect(try await ledger.ledger.settle(written)?.state == .granted, "\(written.decisions)")
        return sale.purchase.transactionId
    }

    @discardableResult
    private func place(_ user: String, product: String = "coins", minutesAgo: Int) async throws -> UUID {
        let order = UUID()
        try await ledger.run(
            """
            insert into orders (id, app_id, user_id, product_id, placed_at)
            values ('\(order)', 'game', '\(user)', '\(product)', now() - interval '\(minutesAgo) minutes')
            """)
        return order
    }

    /// The verdict that a worker would write now; it is not written yet.
    private func verdict(_ receipt: UUID) async throws -> Verdict {
        let row = try #require(try await ledger.ledger.fetch(receipt))
        guard case .decided(let decisions) = await receiptVerifier.examine(row, for: app) else {
            throw Undecided(receiptID: receipt)
        }
        var verdict = Verdict(
            receiptID: row.id, attempt: row.attempt, appID: row.appID, claim: receiptVerifier.claim(row),
            decisions: decisions,
            dueIn: .seconds(600))
        verdict.places = app.policy.places(for: decisions, posterID: row.userID)
        return verdict
    }

    private struct Undecided: Error { let receiptID: UUID }

    private func write(_ hers: Verdict, _ his: Verdict, _ way: BothAtOnceTests.Way, _ about: Comment) async throws {
        switch way {
        case .oneBatch: _ = try await ledger.ledger.settleTogether([hers, his])
        case .oneBatchTurned: _ = try await ledger.ledger.settleTogether([his, hers])
        case .thiefCommitsFirst: try await write(his, before: hers, about)
        case .victimCommitsFirst: try await write(hers, before: his, about)
        }
    }

    /// Writes the second verdict while the first is not committed yet; if both give the purchase, the second waits for
    /// the first.
    private func write(_ first: Verdict, before second: Verdict, _ about: Comment) async throws {
        try await ledger.withSession { session in
            try await session.run(.begin)
            try await ledger.settle(first, on: session)
            async let outcome = ledger.ledger.settle(second)
            if first.gives && second.gives { try await ledger.untilBlocked() }
            try await session.run(.commit)
            let written = try await outcome
            #expect(written != nil, about)
        }
    }
}

extension Verdict {
    fileprivate var gives: Bool {
        guard case .transactions(let entries) = decisions else { return false }
        return entries.contains { $0.decision.gives }
    }
}
