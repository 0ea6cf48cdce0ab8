/// An `errorCode` of the App Store Server API; a code we do not know stays what it is.
///
/// The first three digits are the HTTP status. Source: apple-facts 3.7,
/// https://developer.apple.com/documentation/appstoreserverapi/error-codes
package struct APIErrorCode: RawRepresentable, Hashable, Sendable {
    package var rawValue: Int64

    package init(rawValue: Int64) { self.rawValue = rawValue }

    private init(_ rawValue: Int64) { self.rawValue = rawValue }

    /// The same question may be answered differently later: Apple's documented group, and 5000000, whose page says so.
    package var isRetryable: Bool { Self.retryable.contains(self) }

    /// The id is not known there. Also sent for another environment, another app's token, and right after a purchase,
    /// so it is no proof of anything (apple-facts 3.7).
    package var isTransactionNotFound: Bool { self == .transactionIdNotFound || self == .originalTransactionIdNotFound }

    /// Whether Apple documents it.
    package var isKnown: Bool { Self.known.contains(self) }

    private static let retryable: Set<APIErrorCode> = [
        .accountNotFoundRetryable, .appNotFoundRetryable, .originalTransactionIdNotFoundRetryable, .rateLimitExceeded,
        .generalInternal, .generalInternalRetryable,
    ]

    // MARK: 400

    package static let generalBadRequest = APIErrorCode(4_000_000)
    package static let invalidAppIdentifier = APIErrorCode(4_000_002)
    package static let invalidLimit = APIErrorCode(4_000_004)
    package static let invalidRequestRevision = APIErrorCode(4_000_005)
    package static let invalidTransactionId = APIErrorCode(4_000_006)
    package static let invalidOriginalTransactionId = APIErrorCode(4_000_008)
    package static let invalidExtendByDays = APIErrorCode(4_000_009)
    package static let invalidExtendReasonCode = APIErrorCode(4_000_010)
    package static let invalidRequestIdentifier = APIErrorCode(4_000_011)
    package static let startDateTooFarInPast = APIErrorCode(4_000_012)
    package static let startDateAfterEndDate = APIErrorCode(4_000_013)
    package static let invalidPaginationToken = APIErrorCode(4_000_014)
    package static let invalidStartDate = APIErrorCode(4_000_015)
    package static let invalidEndDate = APIErrorCode(4_000_016)
    package static let paginationTokenExpired = APIErrorCode(4_000_017)
    package static let invalidNotificationType = APIErrorCode(4_000_018)
    package static let multipleFiltersSupplied = APIErrorCode(4_000_019)
    package static let invalidTestNotificationToken = APIErrorCode(4_000_020)
    package static let invalidSort = APIErrorCode(4_000_021)
    package static let invalidProductType = APIErrorCode(4_000_022)
    package static let invalidProductId = APIErrorCode(4_000_023)
    package static let invalidSubscriptionGroupIdentifier = APIErrorCode(4_000_024)
    package static let invalidExcludeRevoked = APIErrorCode(4_000_025)
    package static let invalidInAppOwnershipType = APIErrorCode(4_000_026)
    package static let invalidEmptyStorefrontCountryCodeList = APIErrorCode(4_000_027)
    package static let invalidStorefrontCountryCode = APIErrorCode(4_000_028)
    package static let invalidRevoked = APIErrorCode(4_000_030)
    package static let invalidStatus = APIErrorCode(4_000_031)
    package static let invalidAccountTenure = APIErrorCode(4_000_032)
    package static let invalidAppAccountToken = APIErrorCode(4_000_033)
    package static let invalidConsumptionStatus = APIErrorCode(4_000_034)
    package static let invalidCustomerConsented = APIErrorCode(4_000_035)
    package static let invalidDeliveryStatus = APIErrorCode(4_000_036)
    package static let invalidLifetimeDollarsPurchased = APIErrorCode(4_000_037)
    package static let invalidLifetimeDollarsRefunded = APIErrorCode(4_000_038)
    package static let invalidPlatform = APIErrorCode(4_000_039)
    package static let invalidPlayTime = APIErrorCode(4_000_040)
    package static let invalidSampleContentProvided = APIErrorCode(4_000_041)
    package static let invalidUserStatus = APIErrorCode(4_000_042)
    package static let invalidTransactionNotConsumable = APIErrorCode(4_000_043)
    package static let invalidRefundPreference = APIErrorCode(4_000_044)
    package static let invalidTransactionTypeNotSupported = APIErrorCode(4_000_047)
    package static let appTransactionIdNotSupported = APIErrorCode(4_000_048)
    package static let invalidAppAccountTokenUUID = APIErrorCode(4_000_183)
    package static let familyTransactionNotSupported = APIErrorCode(4_000_185)
    package static let transactionIdIsNotOriginalTransactionId = APIErrorCode(4_000_187)
    package static let consumptionPercentageAutoRenewableSubscription = APIErrorCode(4_000_209)
    package static let invalidGroupId = APIErrorCode(4_000_225)
    package static let invalidAssignedTransactionNotSupported = APIErrorCode(4_000_227)

    // MARK: 403

    package static let subscriptionExtensionIneligible = APIErrorCode(4_030_004)
    package static let subscriptionMaxExtension = APIErrorCode(4_030_005)
    package static let familySharedSubscriptionExtensionIneligible = APIErrorCode(4_030_007)

    // MARK: 404

    package static let accountNotFound = APIErrorCode(4_040_001)
    package static let accountNotFoundRetryable = APIErrorCode(4_040_002)
    package static let appNotFound = APIErrorCode(4_040_003)
    package static let appNotFoundRetryable = APIErrorCode(4_040_004)
    package static let originalTransactionIdNotFound = APIErrorCode(4_040_005)
    package static let originalTransactionIdNotFoundRetryable = APIErrorCode(4_040_006)
    package static let serverNotificationUrlNotFound = APIErrorCode(4_040_007)
    package static let testNotificationNotFound = APIErrorCode(4_040_008)
    package static let statusRequestNotFound = APIErrorCode(4_040_009)
    package static let transactionIdNotFound = APIErrorCode(4_040_010)
    package static let appTransactionDoesNotExist = APIErrorCode(4_040_019)
    package static let groupNotFound = APIErrorCode(4_040_022)

    // MARK: 429 and 500

    package static let rateLimitExceeded = APIErrorCode(4_290_000)
    package static let generalInternal = APIErrorCode(5_000_000)
    package static let generalInternalRetryable = APIErrorCode(5_000_001)

    private static let known: Set<APIErrorCode> = [
        .generalBadRequest, .invalidAppIdentifier, .invalidLimit, .invalidRequestRevision, .invalidTransactionId,
        .invalidOriginalTransactionId, .invalidExtendByDays, .invalidExtendReasonCode, .invalidRequestIdentifier,
        .startDateTooFarInPast, .startDateAfterEndDate, .invalidPaginationToken, .invalidStartDate, .invalidEndDate,
        .paginationTokenExpired, .invalidNotificationType, .multipleFiltersSupplied, .invalidTestNotificationToken,
        .invalidSort, .invalidProductType, .invalidProductId, .invalidSubscriptionGroupIdentifier,
        .invalidExcludeRevoked, .invalidInAppOwnershipType, .invalidEmptyStorefrontCountryCodeList,
        .invalidStorefrontCountryCode, .invalidRevoked, .invalidStatus, .invalidAccountTenure,
        .invalidAppAccountToken, .invalidConsumptionStatus, .invalidCustomerConsented, .invalidDeliveryStatus,
        .invalidLifetimeDollarsPurchased, .invalidLifetimeDollarsRefunded, .invalidPlatform, .invalidPlayTime,
        .invalidSampleContentProvided, .invalidUserStatus, .invalidTransactionNotConsumable, .invalidRefundPreference,
        .invalidTransactionTypeNotSupported, .appTransactionIdNotSupported, .invalidAppAccountTokenUUID,
        .familyTransactionNotSupported, .transactionIdIsNotOriginalTransactionId,
        .consumptionPercentageAutoRenewableSubscription, .invalidGroupId, .invalidAssignedTransactionNotSupported,
        .subscriptionExtensionIneligible, .subscriptionMaxExtension, .familySharedSubscriptionExtensionIneligible,
        .accountNotFound, .accountNotFoundRetryable, .appNotFound, .appNotFoundRetryable,
        .originalTransactionIdNotFound, .originalTransactionIdNotFoundRetryable, .serverNotificationUrlNotFound,
        .testNotificationNotFound, .statusRequestNotFound, .transactionIdNotFound, .appTransactionDoesNotExist,
        .groupNotFound, .rateLimitExceeded, .generalInternal, .generalInternalRetryable,
    ]
}
