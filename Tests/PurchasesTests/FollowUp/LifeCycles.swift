import Foundation
import Purchases

extension LifeCycle {
    private static let p1 = Heard.period("S", "gold", 0, 30)
    private static let p2 = Heard.period("S2", "gold", 30, 60) { $0.reason = "RENEWAL" }
    private static let p3 = Heard.period("S3", "gold", 60, 90) { $0.reason = "RENEWAL" }
    private static let p4 = Heard.period("S4", "gold", 90, 120) { $0.reason = "RENEWAL" }
    private static func isOn(_ signed: Double) -> Heard { .renewal(signed) { $0.renewsAutomatically = true } }
    private static func isOff(_ signed: Double) -> Heard { .renewal(signed) { $0.renewsAutomatically = false } }
    private static func expired(_ signed: Double, intent: Int, of original: String = "S") -> Heard {
        .renewal(signed, of: original) { $0.expirationIntent = intent }
    }
    private static func retry(_ signed: Double) -> Heard { .renewal(signed) { $0.isInBillingRetry = true } }
    private static func grace(_ signed: Double, until: Double) -> Heard {
        .renewal(signed) {
            $0.isInBillingRetry = true
            $0.graceUntil = day(until)
        }
    }

    static let subscriptions: [LifeCycle] = [
        .init(
            name: "renewals, switched off, expired",
            notifications: [p1.with(isOn(0)), p2, isOff(35), isOn(36), p3, isOff(61), expired(90.1, intent: 1)],
            end: 91, goods: ["gem": 300], states: ["S": .expired]),
        .init(
            name: "renewals that go on",
            notifications: [p1, p2, p3, p4.with(isOn(90)), isOff(95)], end: 100, goods: ["gem": 400],
            states: ["S": .active]),
        .init(
            name: "lapse of which Apple says nothing", notifications: [p1, p2, isOn(30)], end: 61,
            goods: ["gem": 200], states: ["S": .expired]),
        .init(
            name: "grace and recovery",
            notifications: [
                p1, grace(30, until: 36), .period("S2", "gold", 33, 63).with(isOn(33)),
                .renewal(34) { $0.quantity = 1 },
            ], end: 50, goods: ["gem": 200], states: ["S": .active]),
        .init(
            name: "in grace", notifications: [p1, isOn(1), grace(30, until: 36)], end: 33, goods: ["gem": 100],
            states: ["S": .inGrace]),
        .init(
            name: "grace, retry, expiry, resubscription",
            notifications: [
                p1, grace(30, until: 36), retry(36.1), expired(89, intent: 2), .period("S2", "gold", 100, 130),
                isOn(100),
                isOff(101),
            ], end: 110, goods: ["gem": 200], states: ["S": .active]),
        .init(
            name: "retry that goes on", notifications: [p1, isOn(2), retry(29.5), retry(30.5)], end: 40,
            goods: ["gem": 100], states: ["S": .inRetry]),
        .init(
            name: "retry and recovery",
            notifications: [p1, retry(29.5), .period("S2", "gold", 41, 71), isOn(41), .period("S3", "gold", 71, 101)],
            end: 80,
            goods: ["gem": 300], states: ["S": .active]),
        .init(
            name: "retry and expiry", notifications: [p1, retry(30), expired(90, intent: 2)], end: 91,
            goods: ["gem": 100], states: ["S": .expired]),
        .init(
            name: "a price that nobody agreed to",
            notifications: [
                p1, p2, .renewal(40) { $0.priceConsent = .pending }, .renewal(50) { $0.priceConsent = .accepted },
                .renewal(55) { $0.priceConsent = .pending }, expired(60.001, intent: 3),
            ], end: 62, goods: ["gem": 200], states: ["S": .expired]),
        .init(
            name: "a product that is not for sale any more",
            notifications: [p1, p2.with(isOn(30)), expired(60.001, intent: 4)], end: 62, goods: ["gem": 200],
            states: ["S": .expired]),
        .init(
            name: "upgrade",
            notifications: [
                .period("S", "silver", 0, 30), .period("S", "silver", 0, 30, signed: 10) { $0.isUpgraded = true },
                .period("S2", "gold", 10, 40), .period("S3", "gold", 40, 70), isOn(10),
            ], end: 50, goods: ["gem": 210], states: ["S": .active]),
        .init(
            name: "upgrade told by a legacy receipt",
            notifications: [
                .period("S", "silver", 0, 30),
                .period("S", "silver", 0, 30, signed: 11) {
                    $0.revokedAt = day(10)
                    $0.reason = nil
                }, .period("S2", "gold", 10, 40),
            ], end: 20, goods: ["gem": 110], states: ["S": .active]),
        .init(
            name: "downgrade at the next period",
            notifications: [
                p1, .renewal(5) { $0.nextProductID = "silver" }, .period("S2", "silver", 30, 60),
                .renewal(30) { $0.nextProductID = "silver" }, .period("S3", "silver", 60, 90),
            ], end: 70, goods: ["gem": 120], states: ["S": .active]),
        .init(
            name: "downgrade that was taken back",
            notifications: [
                p1, .renewal(5) { $0.nextProductID = "silver" }, .renewal(6) { $0.nextProductID = "gold" }, p2,
            ], end: 40, goods: ["gem": 200], states: ["S": .active]),
        .init(
            name: "crossgrade and back",
            notifications: [
                .period("S", "silver", 0, 30), .period("S", "silver", 0, 30, signed: 7) { $0.isUpgraded = true },
                .period("S2", "gold", 7, 37), .period("S2", "gold", 7, 37, signed: 9) { $0.isUpgraded = true },
                .period("S3", "silver", 9, 39), isOn(9), .period("S4", "silver", 39, 69),
            ], end: 50, goods: ["gem": 130], states: ["S": .active]),
        .init(
            name: "refund of the running period", notifications: [p1, p2, isOff(38), p2.ended(40, signed: 41)],
            end: 50, goods: ["gem": 100], states: ["S": .revoked]),
        .init(
            name: "refund of an earlier period",
            notifications: [p1, p2, p3, p2.ended(65), p4, isOn(90), p1.ended(95)], end: 100, goods: ["gem": 200],
            states: ["S": .active]),
        .init(
            name: "refund and reversal",
            notifications: [p1, p1.ended(5), p1.changed(9), p1.ended(12), p1.changed(15), p2], end: 40,
            goods: ["gem": 200], states: ["S": .active]),
        .init(
            name: "a refund that grows",
            notifications: [
                p1, p2, p2.ended(40, type: "REFUND_PRORATED", percentage: 25_000),
                p2.ended(40, signed: 42, type: "REFUND_PRORATED", percentage: 33_333),
                p2.ended(43, signed: 44, type: "REFUND_PRORATED", percentage: 67_932),
                p2.ended(43, signed: 45, type: "REFUND_FULL", percentage: 100_000),
            ], end: 50, goods: ["gem": 100], states: ["S": .revoked]),
        .init(
            name: "a refund that shrinks, with another date",
            notifications: [
                p1, p1.ended(5), p1.ended(6, signed: 7),
                p1.ended(6, signed: 8, type: "REFUND_PRORATED", percentage: 67_932),
            ], end: 20, goods: ["gem": 33], states: ["S": .revoked]),
        .init(
            name: "family sharing and its end",
            notifications: [
                .period("F", "family", 0, 30, of: "F") { $0.ownership = "FAMILY_SHARED" },
                .period("F2", "family", 30, 60, of: "F") { $0.ownership = "FAMILY_SHARED" },
                .period("F2", "family", 30, 60, signed: 40, of: "F") {
                    $0.ownership = "FAMILY_SHARED"
                    $0.revokedAt = day(40)
                    $0.revocation = Revocation(reason: 0, type: "FAMILY_REVOKE")
                },
            ], end: 50, goods: [:], states: ["F": .revoked]),
        .init(
            name: "the buyer's refund of a shared purchase",
            notifications: [
                .period("F", "gold", 0, 30, of: "F") { $0.ownership = "FAMILY_SHARED" },
                .period("F", "gold", 0, 30, signed: 4, of: "F") {
                    $0.ownership = "FAMILY_SHARED"
                    $0.revokedAt = day(4)
                    $0.revocation = Revocation(reason: 1, type: "REFUND_FULL")
                },
            ], end: 10, goods: [:], states: ["F": .revoked]),
        .init(
            name: "into a bundle and out of it",
            notifications: [
                p1, p1.ended(10, type: nil, reason: 2),
                .period("B", "bundle", 10, 40, of: "B") { $0.previousOriginalID = "S" },
                .period("B", "bundle", 10, 40, signed: 20, of: "B") {
                    $0.previousOriginalID = "S"
                    $0.revokedAt = day(20)
                    $0.revocation = Revocation(reason: 2)
                },
                .period("C", "gold", 20, 50, of: "C") { $0.previousOriginalID = "B" },
                .period("C2", "gold", 50, 80, of: "C") { $0.previousOriginalID = "B" },
            ], end: 60, goods: ["gem": 1300], states: ["S": .replaced, "B": .replaced, "C": .active]),
        .init(
            name: "seats that were added, and refunded one by one",
            notifications: [
                seats("S", 0, 5), seats("S+", 10, 3), seats("S+", 10, 3, ended: 20), seats("S", 0, 5, ended: 22),
                .period("S2", "gold", 30, 60) { $0.quantity = 5 }, isOff(31),
            ], end: 40, goods: ["gem": 100], states: ["S": .active]),
        .init(
            name: "a period under two ids",
            notifications: [
                p1, .period("S/", "gold", 1, 30) { $0.webOrderLineItemID = "1" }, isOn(1),
                .period("S/", "gold", 1, 30, signed: 5) {
                    $0.webOrderLineItemID = "1"
                    $0.revokedAt = day(5)
                },
            ], end: 10, goods: [:], states: ["S": .revoked]),
        .init(
            name: "trial, paid period, another end",
            notifications: [
                .period("S", "gold", 0, 7) { $0.offerType = 1 }, .period("S2", "gold", 7, 37),
                .period("S2", "gold", 7, 44, signed: 20), isOn(20),
            ], end: 40, goods: ["gem": 200], states: ["S": .active]),
    ]

    private static func seats(_ id: String, _ from: Double, _ count: Int, ended: Double? = nil) -> Heard {
        .period(id, "gold", from, 30, signed: ended ?? from) {
            $0.quantity = count
            $0.facts = #"{"additionalTransactionReason":"SEAT_ADDITION"}"#
            if let ended {
                $0.revokedAt = day(ended)
                $0.revocation = Revocation(reason: 0, type: "REFUND_FULL", percentage: 100_000)
            }
        }
    }

    private static let sword1 = Heard.purchase("N", "sword", .nonConsumable, 0)
    private static let sword2 = Heard.purchase("N2", "sword", .nonConsumable, 6, of: "N")
    private static let sword3 = Heard.purchase("N3", "sword", .nonConsumable, 12, of: "N")
    private static let coins1 = Heard.purchase("C", "coins", .consumable, 0)
    private static let coins2 = Heard.purchase("D", "coins", .consumable, 6)

    static let oneTimePurchases: [LifeCycle] = [
        .init(
            name: "a consumable refunded and bought again",
            notifications: [coins1, coins1.ended(5), coins2, coins1.changed(8), coins2.ended(9)], end: 10,
            goods: ["coin": 61]),
        .init(
            name: "a consumable refunded in parts, and reversed",
            notifications: [
                coins1, coins1.ended(1, type: "REFUND_PRORATED", percentage: 50_000),
                coins1.ended(1, signed: 2, type: "REFUND_PRORATED", percentage: 10_000), coins1.changed(3),
                coins1.ended(4, type: "REFUND_PRORATED", percentage: 99_999),
            ], end: 10, goods: ["coin": 1]),
        .init(
            name: "a non-consumable refunded, bought again, refunded, and bought again",
            notifications: [sword1, sword1.ended(5), sword2, sword2.ended(8), sword3], end: 20,
            goods: ["sword": 1, "gem": 7]),
        .init(
            name: "a non-consumable bought again and refunded again",
            notifications: [sword1, sword1.ended(5), sword2, sword2.ended(8)], end: 20, goods: [:]),
        .init(
            name: "a non-consumable refunded and reversed, twice",
            notifications: [sword1, sword1.ended(5), sword1.changed(6), sword1.ended(7), sword1.changed(8)], end: 20,
            goods: ["sword": 1, "gem": 7]),
        .init(
            name: "a refund that nobody knows the reason of, then reversed",
            notifications: [sword1, sword1.ended(5, type: nil, reason: 7), sword1.changed(6)], end: 20,
            goods: ["sword": 1, "gem": 7]),
        .init(
            name: "a non-renewing subscription",
            notifications: [
                .purchase("R", "season", .nonRenewing, 0),
                .purchase("R", "season", .nonRenewing, 0, signed: 3) {
                    $0.revokedAt = day(3)
                    $0.revocation = Revocation(reason: 1, type: "REFUND_FULL")
                }, .purchase("R2", "season", .nonRenewing, 5),
            ], end: 10, goods: ["ticket": 3]),
    ]

    static let all = subscriptions + oneTimePurchases
}
