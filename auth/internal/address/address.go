// Package address defines what e-mail addresses and phone numbers may look like, and in which form they are stored and
// compared (docs/accounts.md#addresses).
//
// It checks only the text. It does not trim, fold plus labels or dots, or look up names. A valid address need not
// exist.
package address

import (
	"errors"
	"strings"
)

//lint:file-ignore ST1005 the texts of refusals are sentences because the client is shown them

// These are the reasons why an address is refused.
var (
	ErrNoEmail     = errors.New("An email address is required")
	ErrLongEmail   = errors.New("An email address is too long")
	ErrEmailFormat = errors.New("Unable to validate email address: invalid format")
	ErrPhoneFormat = errors.New("Invalid phone number format (E.164 required)")
)

// These limit lengths in bytes. The characters of a valid address have one byte each.
const (
	maxEmail = 255
	maxLabel = 63 // RFC 1035 section 2.3.4
	minPhone = 2
	maxPhone = 15 // E.164
)

// Email checks an e-mail address and returns the form that is stored: lower case.
func Email(text string) (string, error) {
	switch {
	case text == "":
		return "", ErrNoEmail
	case len(text) > maxEmail:
		return "", ErrLongEmail
	}
	name, domain, ok := strings.Cut(text, "@")
	if !ok || name == "" || !consistsOf(name, local) || !isDomain(domain) {
		return "", ErrEmailFormat
	}
	return strings.ToLower(text), nil
}

// Fold returns an e-mail address that has not been checked in the form in which it is looked up. A sign-in by password
// does not check addresses, since a malformed one has no account.
func Fold(email string) string { return strings.ToLower(email) }

// isDomain reports whether text consists of labels of letters, digits and inner hyphens. A single label is enough.
func isDomain(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		if part == "" || len(part) > maxLabel || !consistsOf(part, label) || part != strings.Trim(part, "-") {
			return false
		}
	}
	return true
}

// These are the characters that phone numbers, labels of domains, and local parts of e-mail addresses may contain.
const (
	digits = "0123456789"
	label  = digits + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-"
	local  = label + ".!#$%&'*+/=?^_`{|}~"
)

// consistsOf reports whether text consists only of these characters.
func consistsOf(text, characters string) bool { return strings.Trim(text, characters) == "" }

// Phone checks a phone number and returns the form that is stored: the digits of E.164 without the plus.
func Phone(text string) (string, error) {
	number := FoldPhone(text)
	if len(number) < minPhone || len(number) > maxPhone || number[0] == '0' || !consistsOf(number, digits) {
		return "", ErrPhoneFormat
	}
	return number, nil
}

// FoldPhone removes the leading plus and all spaces, and checks nothing.
func FoldPhone(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "+"), " ", "")
}
