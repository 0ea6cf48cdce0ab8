import AppStore
import Encoding
import Purchases

/// The body of the call to Apple about a refund, in the version that the statement names.
enum ConsumptionBody: Sendable, Hashable {
    case v1(ConsumptionInformationV1)
    case v2(ConsumptionInformation)

    /// - Throws: `InvalidRequest` for a combination that Apple's rules forbid; the rules of ``AppPolicy`` make none.
    init(_ statement: RefundStatement) throws(InvalidRequest) {
        self =
            statement.apiVersion == 1
            ? .v1(try ConsumptionInformationV1(statement)) : .v2(try ConsumptionInformation(statement))
    }

    var json: String {
        switch self {
        case .v1(let information): String(decoding: information.body.bytes, as: UTF8.self)
        case .v2(let information): String(decoding: information.body.bytes, as: UTF8.self)
        }
    }
}

extension ConsumptionInformation {
    fileprivate init(_ statement: RefundStatement) throws(InvalidRequest) {
        try self.init(
            customerConsented: true, sampleContentProvided: statement.providesSample,
            deliveryStatus: DeliveryStatus(statement.delivery), isAutoRenewable: statement.isAutoRenewable,
            consumptionPercentage: statement.percentage, refundPreference: RefundPreference(statement.preference))
    }
}

extension ConsumptionInformation.DeliveryStatus {
    fileprivate init(_ delivery: RefundStatement.Delivery) {
        self =
            switch delivery {
            case .delivered: .delivered
            case .qualityIssue: .qualityIssue
            case .wrongItem: .wrongItem
            case .serverOutage: .serverOutage
            case .other: .other
            }
    }
}

extension ConsumptionInformation.RefundPreference {
    fileprivate init?(_ preference: RefundStatement.Preference) {
        switch preference {
        case .unsaid: return nil
        case .decline: self = .decline
        case .grantFull: self = .grantFull
        case .grantProrated: self = .grantProrated
        }
    }
}

extension ConsumptionInformationV1 {
    /// Version 1 has steps instead of a percentage, and no preference for a part of the money. A fact about the user
    /// that this server does not know is undeclared.
    fileprivate init(_ statement: RefundStatement) throws(InvalidRequest) {
        try self.init(
            customerConsented: true, sampleContentProvided: statement.providesSample,
            deliveryStatus: DeliveryStatus(statement.delivery))
        appAccountToken = statement.appAccountToken
        consumptionStatus =
            switch statement.percentage {
            case nil: .undeclared
            case 0: .notConsumed
            case Revocation.whole: .fullyConsumed
            case _?: .partiallyConsumed
            }
        refundPreference =
            switch statement.preference {
            case .unsaid: .undeclared
            case .decline: .decline
            case .grantFull, .grantProrated: .grant
            }
    }
}

extension ConsumptionInformationV1.DeliveryStatus {
    fileprivate init(_ delivery: RefundStatement.Delivery) {
        self =
            switch delivery {
            case .delivered: .delivered
            case .qualityIssue: .qualityIssue
            case .wrongItem: .wrongItem
            case .serverOutage: .serverOutage
            case .other: .other
            }
    }
}
