/// An `errorCode` of the App Store Server API; a code we do not know stays what it is.
///
/// The first three digits are the HTTP status. Source: AppleFacts 3.7,
/// https://developer.apple.com/documentation/appstoreserverapi/error-codes
package struct APIErrorCode: RawRepresentable, Hashable, Sendable, CustomStringConvertible {
    package var rawValue: Int64

    package init(rawValue: Int64) { self.rawValue = rawValue }

    private init(_ rawValue: Int64) { self.rawValue = rawValue }

    /// What a code says about the question that was asked. `Fate` says what that means for a receipt.
    package enum Meaning: String, CaseIterable, Sendable {
        /// The same question may be answered differently later: Apple's documented group, and 5000000, whose page says
        /// so.
        case temporary
        /// More questions than Apple takes in this second; wait as long as Apple says.
        case tooMany
        /// The id is not known there. Also sent for another environment, another app's token, and right after a
        /// purchase, so it is no proof of anything.
        case notFound
        /// The given value is no id that this question may be asked about, whatever happens later.
        case invalidID
        /// Our request breaks a rule of Apple's: it must be changed before it is sent again.
        case ourRequest
        /// Something is missing or wrong in our configuration or in App Store Connect: a person must mend it.
        case configuration
        /// Apple understood the request, and the state of what it is about forbids it.
        case refused
        /// The thing that was asked for is not there, and Apple does not suggest to ask again.
        case absent
        /// Not in the table.
        case unknown
    }

    /// `unknown` for a code that is not in the table.
    package var meaning: Meaning { Self.table[rawValue]?.meaning ?? .unknown }

    /// Apple's name of it, without the suffix `Error`; nil for a code that is not in the table.
    package var name: String? { Self.table[rawValue]?.name }

    /// Whether the same question may be answered differently later. True if that is not known.
    package var isRetryable: Bool {
        switch meaning {
        case .temporary, .tooMany, .notFound, .unknown: true
        case .invalidID, .ourRequest, .configuration, .refused, .absent: false
        }
    }

    package var description: String { name.map { "\(rawValue) \($0)" } ?? "\(rawValue)" }

    // MARK: The codes this program speaks of

    package static let generalBadRequest = APIErrorCode(4_000_000)
    package static let invalidRequestRevision = APIErrorCode(4_000_005)
    package static let invalidTransactionId = APIErrorCode(4_000_006)
    package static let invalidOriginalTransactionId = APIErrorCode(4_000_008)
    package static let invalidRequestIdentifier = APIErrorCode(4_000_011)
    package static let invalidTestNotificationToken = APIErrorCode(4_000_020)
    package static let serverNotificationUrlNotFound = APIErrorCode(4_040_007)
    package static let testNotificationNotFound = APIErrorCode(4_040_008)
    package static let transactionIdNotFound = APIErrorCode(4_040_010)
    package static let generalInternal = APIErrorCode(5_000_000)
    package static let generalInternalRetryable = APIErrorCode(5_000_001)

    // MARK: The table

    private typealias Row = (name: String, meaning: Meaning)

    /// Every code of AppleFacts 3.7, those of retention messaging included.
    private static let table: [Int64: Row] = [
        4_000_000: ("GeneralBadRequest", .ourRequest),
        4_000_002: ("InvalidAppIdentifier", .configuration),
        4_000_004: ("InvalidLimit", .ourRequest),
        4_000_005: ("InvalidRequestRevision", .ourRequest),
        4_000_006: ("InvalidTransactionId", .invalidID),
        4_000_008: ("InvalidOriginalTransactionId", .ourRequest),
        4_000_009: ("InvalidExtendByDays", .ourRequest),
        4_000_010: ("InvalidExtendReasonCode", .ourRequest),
        4_000_011: ("InvalidRequestIdentifier", .ourRequest),
        4_000_012: ("StartDateTooFarInPast", .ourRequest),
        4_000_013: ("StartDateAfterEndDate", .ourRequest),
        4_000_014: ("InvalidPaginationToken", .ourRequest),
        4_000_015: ("InvalidStartDate", .ourRequest),
        4_000_016: ("InvalidEndDate", .ourRequest),
        // The list begins anew, at its first page.
        4_000_017: ("PaginationTokenExpired", .ourRequest),
        4_000_018: ("InvalidNotificationType", .ourRequest),
        4_000_019: ("MultipleFiltersSupplied", .ourRequest),
        4_000_020: ("InvalidTestNotificationToken", .ourRequest),
        4_000_021: ("InvalidSort", .ourRequest),
        4_000_022: ("InvalidProductType", .ourRequest),
        4_000_023: ("InvalidProductId", .ourRequest),
        4_000_024: ("InvalidSubscriptionGroupIdentifier", .ourRequest),
        4_000_025: ("InvalidExcludeRevoked", .ourRequest),
        4_000_026: ("InvalidInAppOwnershipType", .ourRequest),
        4_000_027: ("InvalidEmptyStorefrontCountryCodeList", .ourRequest),
        4_000_028: ("InvalidStorefrontCountryCode", .ourRequest),
        4_000_030: ("InvalidRevoked", .ourRequest),
        4_000_031: ("InvalidStatus", .ourRequest),
        4_000_032: ("InvalidAccountTenure", .ourRequest),
        4_000_033: ("InvalidAppAccountToken", .ourRequest),
        4_000_034: ("InvalidConsumptionStatus", .ourRequest),
        4_000_035: ("InvalidCustomerConsented", .ourRequest),
        4_000_036: ("InvalidDeliveryStatus", .ourRequest),
        4_000_037: ("InvalidLifetimeDollarsPurchased", .ourRequest),
        4_000_038: ("InvalidLifetimeDollarsRefunded", .ourRequest),
        4_000_039: ("InvalidPlatform", .ourRequest),
        4_000_040: ("InvalidPlayTime", .ourRequest),
        4_000_041: ("InvalidSampleContentProvided", .ourRequest),
        4_000_042: ("InvalidUserStatus", .ourRequest),
        4_000_043: ("InvalidTransactionNotConsumable", .refused),
        4_000_044: ("InvalidRefundPreference", .ourRequest),
        4_000_047: ("InvalidTransactionTypeNotSupported", .refused),
        4_000_048: ("AppTransactionIdNotSupported", .invalidID),
        4_000_183: ("InvalidAppAccountTokenUUID", .ourRequest),
        4_000_185: ("FamilyTransactionNotSupported", .refused),
        4_000_187: ("TransactionIdIsNotOriginalTransactionId", .ourRequest),
        4_000_209: ("ConsumptionPercentageAutoRenewableSubscription", .ourRequest),
        4_000_225: ("InvalidGroupId", .ourRequest),
        4_000_227: ("InvalidAssignedTransactionNotSupported", .refused),

        4_030_004: ("SubscriptionExtensionIneligible", .refused),
        4_030_005: ("SubscriptionMaxExtension", .refused),
        4_030_007: ("FamilySharedSubscriptionExtensionIneligible", .refused),

        4_040_001: ("AccountNotFound", .absent),
        4_040_002: ("AccountNotFoundRetryable", .temporary),
        4_040_003: ("AppNotFound", .configuration),
        4_040_004: ("AppNotFoundRetryable", .temporary),
        4_040_005: ("OriginalTransactionIdNotFound", .notFound),
        4_040_006: ("OriginalTransactionIdNotFoundRetryable", .temporary),
        4_040_007: ("ServerNotificationUrlNotFound", .configuration),
        4_040_008: ("TestNotificationNotFound", .absent),
        4_040_009: ("StatusRequestNotFound", .absent),
        4_040_010: ("TransactionIdNotFound", .notFound),
        4_040_019: ("AppTransactionDoesNotExist", .absent),
        4_040_022: ("GroupNotFound", .absent),

        4_290_000: ("RateLimitExceeded", .tooMany),
        5_000_000: ("GeneralInternal", .temporary),
        5_000_001: ("GeneralInternalRetryable", .temporary),

        // Retention messaging.
        4_000_161: ("InvalidImage", .ourRequest),
        4_000_162: ("HeaderTooLong", .ourRequest),
        4_000_163: ("BodyTooLong", .ourRequest),
        4_000_164: ("InvalidLocale", .ourRequest),
        4_000_175: ("AltTextTooLong", .ourRequest),
        4_000_211: ("InvalidPerformanceTestRequest", .ourRequest),
        4_000_212: ("InvalidRequestId", .ourRequest),
        4_000_213: ("ExistingPerformanceTestRun", .refused),
        4_000_215: ("BadRequestRealtimeUrl", .ourRequest),
        4_000_216: ("BadRequestImageSize", .ourRequest),
        4_000_218: ("BadRequestTooManyBulletPoints", .ourRequest),
        4_000_219: ("BadRequestBulletPointTextTooLong", .ourRequest),
        4_000_224: ("BadRequestAboveImageRequiresAnImage", .ourRequest),
        4_030_014: ("MaximumNumberOfImagesReached", .refused),
        4_030_016: ("MaximumNumberOfMessagesReached", .refused),
        4_030_017: ("MessageNotApproved", .refused),
        4_030_018: ("ImageNotApproved", .refused),
        4_030_019: ("ImageInUse", .refused),
        4_030_026: ("ForbiddenNoPassingTest", .refused),
        4_040_014: ("ImageNotFound", .absent),
        4_040_015: ("MessageNotFound", .absent),
        4_040_018: ("PerformanceTestRunNotFound", .absent),
        4_040_020: ("DefaultMessageNotFound", .absent),
        4_040_021: ("RealtimeUrlNotFound", .absent),
        4_090_000: ("ImageAlreadyExists", .refused),
        4_090_001: ("MessageAlreadyExists", .refused),
    ]
}
