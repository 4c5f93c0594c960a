// Package webauthn reads and verifies the answers of authenticators (W3C Web Authentication Level 3), and makes the
// options and challenges of registrations and sign-ins. It knows no HTTP, SQL, clock or settings, and needs no foreign
// library: it has a small reader for CBOR (RFC 8949).
//
// It does not check attestation: an attestation statement of any format must only be a well-formed map.
package webauthn

import (
	"errors"
	"fmt"
)

// ErrUnreadable is returned for a malformed message, which no browser sends.
var ErrUnreadable = errors.New("webauthn: unreadable message")

func unreadable(what string) error { return fmt.Errorf("%w: %s", ErrUnreadable, what) }

// Failure names the check that a well-formed message has failed, for logs and the audit log.
type Failure string

// The failures, by the name of the check.
const (
	FailedType             Failure = "type"
	FailedChallenge        Failure = "challenge"
	FailedOrigin           Failure = "origin"
	FailedCrossOrigin      Failure = "cross_origin"
	FailedRPID             Failure = "rp_id"
	FailedUserPresence     Failure = "user_presence"
	FailedUserVerification Failure = "user_verification"
	FailedBackupFlags      Failure = "backup_flags"
	FailedAlgorithm        Failure = "algorithm"
	FailedKey              Failure = "key"
	FailedCredentialID     Failure = "credential_id"
	FailedUserHandle       Failure = "user_handle"
	FailedSignature        Failure = "signature"
	FailedSignCount        Failure = "sign_count"
	UnknownCredential      Failure = "unknown_credential"
)

// Error returns the failure as a sentence for the log.
func (f Failure) Error() string { return "webauthn: the check of " + string(f) + " failed" }

// Credential is what is stored of a registered credential.
type Credential struct {
	ID []byte
	// PublicKey is the COSE_Key as the authenticator sent it.
	PublicKey []byte
	AAGUID    [16]byte
	SignCount uint32
	// Transports are the transports that the browser reported; they are sent in later options.
	Transports               []string
	BackupEligible, BackedUp bool
	UserVerified             bool
}

// Policy says what a message must match, apart from the credential.
type Policy struct {
	RPID    string
	Origins []string
	// Challenges are the challenges that are accepted: one for each root key.
	Challenges [][]byte
	RequireUV  bool
}
