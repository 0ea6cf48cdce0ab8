import Encoding
import Foundation

/// The events that tell the difference between the told state of a subscription and its present state.
struct SubscriptionEvents {
    private let chain: ChainFacts
    /// Nil: no period counts any more.
    private let rules: SubscriptionRules?
    private let owner: ChainFacts.Owner
    private let told: ToldState?
    private let news: ToldState
    private(set) var written: [FollowUp.Event] = []
    /// How many events about its subscription the chain has had.
    private(set) var steps: Int

    init(_ chain: ChainFacts, _ rules: SubscriptionRules?, owner: ChainFacts.Owner, told: ToldState?, news: ToldState) {
        self.chain = chain
        self.rules = rules
        self.owner = owner
        self.told = told
        self.news = news
        steps = chain.steps
    }

    mutating func tell() {
        if let type = eventOfState { write(type, bodyOfState(terms: type != .subscriptionExpired)) }
        if isChanged { write(.subscriptionChanged, bodyOfState(terms: false)) }
        if let consent = news.priceConsent, consent != told?.priceConsent {
            write(
                .priceConsent, [.init("status", .string(consent.rawValue))] + bodyOfState(terms: false))
        }
        tellEntitlement()
    }

    /// The event that says the present state. Nil: the state was told before.
    private var eventOfState: EventType? {
        let isOfSamePeriod = (told?.transactionID).isSameText(as: news.transactionID)
        if let told, told.state == news.state, isOfSamePeriod { return nil }
        switch news.state {
        case .active: return eventOfActivity(isOfSamePeriod: isOfSamePeriod)
        case .inGrace: return .subscriptionInGrace
        case .inRetry: return .subscriptionInRetry
        case .expired, .replaced: return .subscriptionExpired
        case .revoked: return .subscriptionRevoked
        }
    }

    /// The event of a period that runs, and that was not told so.
    private func eventOfActivity(isOfSamePeriod: Bool) -> EventType {
        switch told?.state {
        case nil: .subscriptionStarted
        case .active: .subscriptionRenewed
        case .inGrace, .inRetry: .subscriptionRecovered
        case .expired, .revoked, .replaced: isOfSamePeriod ? .subscriptionRecovered : .subscriptionStarted
        }
    }

    /// Whether a told fact beside the state is different now: the product, its end, the seats, the commitment, or the
    /// terms of the next period. A fact that becomes known for the first time is a change only if it is not the usual
    /// one.
    private var isChanged: Bool {
        guard let told else { return false }
        let isOfSamePeriod = told.transactionID.isSameText(as: news.transactionID)
        if !told.productID.isSameText(as: news.productID) { return true }
        if let renews = news.renewsAutomatically, renews != told.renewsAutomatically ?? true { return true }
        if let renews = news.commitmentRenews, renews != told.commitmentRenews ?? true { return true }
        // A new period has the terms that the former period named for it.
        guard isOfSamePeriod else {
            return news.nextProductID != nil || news.nextSeats != nil || news.seats != told.seats
        }
        if let until = news.commitmentUntil, let former = told.commitmentUntil, !until.isSameMoment(as: former) {
            return true
        }
        return !told.nextProductID.isSameText(as: news.nextProductID) || told.nextSeats != news.nextSeats
            || told.seats != news.seats
            || told.state == news.state && news.state == .active && !told.accessUntil.isSameMoment(as: news.accessUntil)
            || news.nextOfferType != nil
                && (told.nextOfferType, told.nextOfferIdentifier) != (news.nextOfferType, news.nextOfferIdentifier)
    }

    /// Tells the present entitlement to the user who has the chain, and to the user who had the chain before.
    mutating func tellEntitlement() {
        if let told, told.isEntitled, !told.userID.isSameText(as: news.userID) {
            write(.entitlementChanged, [.init("entitled", .bool(false))] + identity, to: told.userID)
        }
        let former = told.flatMap { $0.userID.isSameText(as: news.userID) ? $0 : nil }
        let isNew: Bool
        if news.isEntitled {
            isNew =
                former?.isEntitled != true || !(former?.accessUntil.isSameMoment(as: news.accessUntil) ?? false)
                || !(former?.productID).isSameText(as: news.productID)
        } else {
            isNew = former?.isEntitled == true
        }
        guard isNew else { return }
        write(.entitlementChanged, [.init("entitled", .bool(news.isEntitled))] + until + state + identity)
    }

    private mutating func write(_ type: EventType, _ body: [JSONValue.Member], to userID: String? = nil) {
        steps += 1
        written.append(
            FollowUp.Event(
                type: type, userID: userID ?? news.userID, transactionID: news.transactionID,
                distinction: String(steps), receiptID: period?.purchase.granted?.grant?.receiptID ?? owner.receiptID,
                body: body))
    }

    private var period: SubscriptionRules.Period? {
        rules?.periods.last { $0.purchase.id.isSameText(as: news.transactionID) }
    }

    private var identity: [JSONValue.Member] {
        [
            .init("productId", .string(news.productID)), .init("environment", .string(chain.environment)),
            .init("originalTransactionId", .string(chain.originalID)),
        ]
    }
    private var state: [JSONValue.Member] { [.init("state", .string(news.state.rawValue))] }
    private var until: [JSONValue.Member] { [.init("until", .string(news.accessUntil.rfc3339))] }

    /// - Parameter terms: whether price, offer and sharing of the period belong to it.
    private func bodyOfState(terms: Bool) -> [JSONValue.Member] {
        var body = state + identity + until + [.init("entitled", .bool(news.isEntitled))]
        if let reason { body.append(.init("reason", .string(reason))) }
        if let renews = news.renewsAutomatically { body.append(.init("renews", .bool(renews))) }
        if let commitment { body.append(.init("commitment", commitment)) }
        if let next = news.nextProductID { body.append(.init("nextProductId", .string(next))) }
        if let seats = news.seats { body.append(.init("seats", .integer(seats))) }
        if let seats = news.nextSeats { body.append(.init("nextSeats", .integer(seats))) }
        if let kind = news.nextOfferType.flatMap({ PurchaseTerms.offerKinds[$0] }) {
            let id = news.nextOfferIdentifier.map { [JSONValue.Member("id", .string($0))] } ?? []
            body.append(.init("nextOffer", .object([.init("type", .string(kind))] + id)))
        }
        if terms, let facts = period?.purchase.facts { body += PurchaseTerms(facts).members }
        return body
    }

    /// Of a period within a commitment: when the commitment ends, and whether another one follows.
    private var commitment: JSONValue? {
        let until = news.commitmentUntil.map { [JSONValue.Member("until", .string($0.rfc3339))] } ?? []
        let renews = news.commitmentRenews.map { [JSONValue.Member("renews", .bool($0))] } ?? []
        return until.isEmpty && renews.isEmpty ? nil : .object(until + renews)
    }

    /// The reason why the subscription is over. Nil: it is not over.
    private var reason: String? {
        switch news.state {
        case .active, .inGrace, .inRetry: return nil
        case .replaced: return "replaced"
        case .revoked:
            switch period?.ending {
            case .withdrawn: return "withdrawn"
            case .refunded, .refundedInPart: return "refunded"
            case .upgraded, .unknown, nil: return "other"
            }
        case .expired: break
        }
        switch rules?.renewal?.expirationIntent {
        case 1: return "cancelled"
        case 2: return "billing_error"
        case 3: return "price_not_accepted"
        case 4: return "product_unavailable"
        case nil where rules?.renewal?.renewsAutomatically == false: return "cancelled"
        case nil where rules?.renewal?.commitment?.renewsAutomatically == false: return "cancelled"
        default: return "other"
        }
    }
}

extension Date {
    /// Whether both are one moment of Apple's, which names milliseconds. A date that was stored may have been rounded.
    fileprivate func isSameMoment(as other: Date) -> Bool { abs(timeIntervalSince(other)) < 0.001 }
}
