package import Encoding
import Foundation

// For people to look at: names and numbers as in Apple's signed data, dates as UNIX milliseconds, absent fields left
// out.

extension AppReceipt {
    package var json: [String: JSON] {
        var members: [String: JSON] = ["inApp": .array(inApp.map { .object($0.json) })]
        members["receiptType"] = receiptType.map { .string($0) }
        members["environment"] = environment.map { .string($0.rawValue) }
        members["appAppleId"] = appAppleId.map { .integer($0) }
        members["bundleId"] = bundleId.map { .string($0) }
        members["applicationVersion"] = applicationVersion.map { .string($0) }
        members["opaqueValue"] = opaqueValue.map { .string($0.hexadecimal) }
        members["sha1Hash"] = sha1Hash.map { .string($0.hexadecimal) }
        members["transactionDate"] = transactionDate.map { .milliseconds($0) }
        members["ageRating"] = ageRating.map { .string($0) }
        members["creationDate"] = creationDate.map { .milliseconds($0) }
        members["originalPurchaseDate"] = originalPurchaseDate.map { .milliseconds($0) }
        members["originalApplicationVersion"] = originalApplicationVersion.map { .string($0) }
        members["expirationDate"] = expirationDate.map { .milliseconds($0) }
        return members
    }
}

extension ReceiptEntry {
    /// What a receipt itself can say of a purchase.
    fileprivate var json: [String: JSON] {
        var members: [String: JSON] = ["transactionId": .string(transactionId), "productId": .string(productId)]
        members["quantity"] = quantity.map { .integer(Int64($0)) }
        members["originalTransactionId"] = originalTransactionId.map { .string($0) }
        members["purchaseDate"] = purchaseDate.map { .milliseconds($0) }
        members["originalPurchaseDate"] = originalPurchaseDate.map { .milliseconds($0) }
        members["expiresDate"] = expiresDate.map { .milliseconds($0) }
        members["cancellationDate"] = cancellationDate.map { .milliseconds($0) }
        members["webOrderLineItemId"] = webOrderLineItemId.map { .string($0) }
        members["productType"] = productType.map { .integer(Int64($0)) }
        members["isTrialPeriod"] = isTrialPeriod.map { .bool($0) }
        members["isInIntroOfferPeriod"] = isInIntroOfferPeriod.map { .bool($0) }
        members["promotionalOfferId"] = promotionalOfferId.map { .string($0) }
        return members
    }
}

extension TransactionReceipt {
    var json: [String: JSON] {
        var members: [String: JSON] = ["purchaseInfo": .object(fields.mapValues { .string($0) })]
        members["transactionId"] = .string(transactionId)
        members["environment"] = environment.map { .string($0) }
        return members
    }
}

extension JSON {
    /// Of a date that a receipt spelled: years 0 to 9999.
    fileprivate static func milliseconds(_ date: Date) -> JSON {
        .integer(Int64((date.timeIntervalSince1970 * 1000).rounded()))
    }
}
