import Foundation
import Testing

@testable import Purchases

/// Goal: what a person decides about a purchase is stored exactly where a held receipt waits for a person, can be judged,
/// and nothing that was given or taken back stands against it (B4). Method: all combinations of what stands about the
/// purchase.
@Suite struct SupportDecisionAnswerTests {
    private typealias Showing = UndecidedPurchase.Showing
    private typealias Outcome = SupportDecisionAnswer.Outcome

    private static let held = Showing(state: .held, reason: .orderUnknown)

    private static let showings: [Showing] = [
        held, .init(state: .held, reason: .itemUnknown), .init(state: .held, reason: .transferReview),
        .init(state: .held, reason: nil), .init(state: .held, reason: .orderUnknown, hasProof: false),
        .init(state: .held, reason: .possessionMissing, isBareID: true),
        .init(state: .held, reason: .orderUnknown, isOpen: false), .init(state: .open, reason: .appleUnavailable),
        .init(state: .rejected, reason: .historical, isOpen: false),
        .init(state: .alreadyGranted, reason: nil, isOpen: false),
        .init(state: .held, reason: .idCollision), .init(state: .held, reason: .idCollision, grantedAs: "Sandbox/2"),
    ]

    /// What no receipt, one receipt and two receipts show.
    private static var lists: [[Showing]] {
        [[]] + showings.map { [$0] } + showings.flatMap { one in showings.map { [one, $0] } }
    }

    @Test("the first reason against a decision is told, and only a decision without one is stored")
    func order() {
        for list in Self.lists {
            for flags in 0..<64 {
                let has = { (bit: Int) in flags & 1 << bit != 0 }
                var purchase = UndecidedPurchase(showings: list)
                (purchase.isImported, purchase.isTakenBack, purchase.isShared) = (has(0), has(1), has(2))
                purchase.isForStranger = has(3)
                let (namesItem, canAsk) = (has(4), has(5))
                let answer = purchase.answer(namesItem: namesItem, canAsk: canAsk)
                #expect(answer.reason == list.first?.reason)

                let waiting = list.filter(\.waitsForPerson)
                let canBeJudged = waiting.contains { $0.hasProof && (canAsk || !$0.isBareID) }
                let needsItem = waiting.allSatisfy { $0.reason == .itemUnknown }
                let isDecided =
                    flags & 0b1111 == 0 && !waiting.isEmpty && canBeJudged && (namesItem || !needsItem)
                #expect(answer.isDecided == isDecided)
                switch answer.outcome {
                case .imported: #expect(purchase.isImported)
                case .refunded: #expect(purchase.isTakenBack && !purchase.isImported)
                case .shared: #expect(purchase.isShared && !purchase.isImported && !purchase.isTakenBack)
                case .unknown: #expect(list.isEmpty)
                case .waits, .open, .ended: #expect(!list.isEmpty && waiting.isEmpty)
                case .gone: #expect(!waiting.isEmpty && waiting.allSatisfy { !$0.hasProof })
                case .unasked: #expect(!canAsk && waiting.contains { $0.isBareID })
                case .itemless: #expect(!namesItem && needsItem && canBeJudged)
                case .stranger: #expect(purchase.isForStranger && canBeJudged)
                case .decided: break
                case .granted, .collision: Issue.record("nothing is granted")
                }
                for isOfApp in [true, false] {
                    purchase.isGrantOfApp = isOfApp
                    let expected: Outcome = isOfApp ? .granted : .collision
                    #expect(purchase.answer(namesItem: namesItem, canAsk: canAsk).outcome == expected)
                }
            }
        }
    }

    @Test("each outcome has its case")
    func cases() {
        func outcome(_ list: [Showing], item: Bool = false, canAsk: Bool = true) -> Outcome {
            UndecidedPurchase(showings: list).answer(namesItem: item, canAsk: canAsk).outcome
        }
        #expect(outcome([]) == .unknown)
        #expect(outcome([Self.held]) == .decided)
        let itemless = Showing(state: .held, reason: .itemUnknown)
        #expect(outcome([itemless]) == .itemless && outcome([itemless], item: true) == .decided)
        #expect(outcome([itemless, Self.held]) == .decided, "another receipt waits for something else")
        let bare = Showing(state: .held, reason: .possessionMissing, isBareID: true)
        #expect(outcome([bare]) == .decided && outcome([bare], canAsk: false) == .unasked)
        let gone = Showing(state: .held, reason: .orderUnknown, hasProof: false)
        #expect(outcome([gone]) == .gone && outcome([bare, gone], canAsk: false) == .unasked)
        #expect(outcome([.init(state: .held, reason: .transferReview)]) == .waits)
        #expect(outcome([.init(state: .open, reason: .appleUnavailable)]) == .open)
        #expect(outcome([.init(state: .rejected, reason: .historical, isOpen: false)]) == .ended)
        var stranger = UndecidedPurchase(showings: [Self.held])
        stranger.isForStranger = true
        #expect(stranger.answer(namesItem: false, canAsk: true).outcome == .stranger)
        stranger.isShared = true
        #expect(stranger.answer(namesItem: false, canAsk: true).outcome == .shared)
    }

    @Test("a purchase whose id another environment has is given behind its environment")
    func idsToGive() {
        func id(_ list: [Showing]) -> String { UndecidedPurchase(showings: list).idToGive("2") }
        let apart = Showing(state: .held, reason: .idCollision, grantedAs: "Sandbox/2")
        #expect(apart.waitsForPerson && id([apart]) == "Sandbox/2")
        let anotherApps = Showing(state: .held, reason: .idCollision)
        #expect(!anotherApps.waitsForPerson && id([anotherApps]) == "2")
        let given = Showing(state: .alreadyGranted, reason: nil, grantedAs: "Sandbox/2", isOpen: false)
        #expect(id([given]) == "Sandbox/2", "a second decision finds the grant")
        #expect(id([.init(state: .alreadyGranted, reason: nil, grantedAs: "3", isOpen: false)]) == "2")
        #expect(id([Self.held, apart]) == "2" && id([]) == "2")
    }

    @Test("P10: an owner who was decided: told only if the owner is new; Apple is told of a chain's latest purchase")
    func owner() {
        for environment in ["Production", "Sandbox", "Xcode"] {
            for isLatest in [true, false] {
                let purchase = DecidedPurchase(holderID: "u1", environment: environment, isLatest: isLatest)
                #expect(purchase.moves(to: "u2") && !purchase.moves(to: "u1"))
                let isKnown = environment != "Xcode"
                #expect(purchase.needsToken(of: ["u2", "guest"]) == (isLatest && isKnown))
                #expect(!purchase.needsToken(of: ["u2", "u1"]), "it is the same person's already")
            }
        }
        // The composed and the decomposed form of one name are two users.
        let composed = DecidedPurchase(holderID: "\u{e9}", environment: "Production", isLatest: true)
        #expect(composed.moves(to: "e\u{301}") && composed.needsToken(of: ["e\u{301}"]))
    }
}
