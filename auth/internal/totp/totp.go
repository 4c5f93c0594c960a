// Package totp makes and checks the codes of authenticator apps: RFC 6238 with HMAC-SHA-1, steps of 30 s and six
// digits, which every app supports.
//
// It stores nothing: the caller stores the encrypted key, and the step whose code was accepted last.
package totp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"rsc.io/qr"
)

const (
	// KeySize is the length of a key in bytes. It is the length of the hash, as RFC 4226 section 4 recommends.
	KeySize = sha1.Size
	// Digits is the length of a code.
	Digits = 6
	// Period is the length of a time step, during which the code is the same.
	Period = 30 * time.Second
	// skew is how many steps the user's clock may be slow or fast (RFC 6238 section 5.2).
	skew = 1
)

// NewKey returns a random key.
func NewKey() []byte {
	key := make([]byte, KeySize)
	rand.Read(key) // never fails (crypto/rand)
	return key
}

var base32Plain = base32.StdEncoding.WithPadding(base32.NoPadding)

// Text returns a key as people type it: Base32 in upper case without padding.
func Text(key []byte) string { return base32Plain.EncodeToString(key) }

// Step returns the number of the time step that contains t, counted from 1970.
func Step(t time.Time) int64 { return t.Unix() / int64(Period/time.Second) }

// Code returns the code of a key in a time step.
func Code(key []byte, step int64) string {
	return fmt.Sprintf("%0*d", Digits, value(key, step)%1_000_000)
}

// value returns the 31-bit number from which the code is made (RFC 4226 section 5.3).
func value(key []byte, step int64) uint32 {
	h := hmac.New(sha1.New, key)
	var counter [8]byte
	binary.BigEndian.PutUint64(counter[:], uint64(step))
	h.Write(counter[:])
	sum := h.Sum(nil)
	at := sum[len(sum)-1] & 0x0f
	return binary.BigEndian.Uint32(sum[at:]) & 0x7fffffff
}

// Check returns the time step to which a code belongs. It accepts the current step, the step before and the step after,
// but only steps after last, the step whose code was accepted last. It ignores white space around the code. It always
// compares the codes of all three steps, each in constant time.
func Check(key []byte, code string, now time.Time, last int64) (step int64, ok bool) {
	code = strings.TrimSpace(code)
	present := Step(now)
	for s := present - skew; s <= present+skew; s++ {
		same := subtle.ConstantTimeCompare([]byte(Code(key, s)), []byte(code)) == 1
		if same && s > last && !ok {
			step, ok = s, true
		}
	}
	return step, ok
}

// URI returns the text of the QR code that an authenticator app scans (Google Authenticator's Key Uri Format). issuer
// is the name of the site, account the user's name on it.
func URI(issuer, account string, key []byte) string {
	return "otpauth://totp/" + escape(issuer) + ":" + escape(account) +
		"?algorithm=SHA1&digits=6&issuer=" + escape(issuer) + "&period=30&secret=" + Text(key)
}

// escapeMore escapes more than a URL's path requires: a colon would end a name, and some apps read a plus as a space.
var escapeMore = strings.NewReplacer(":", "%3A", "&", "%26", "=", "%3D", "+", "%2B")

func escape(text string) string { return escapeMore.Replace(url.PathEscape(text)) }

const (
	module = 3 // pixels
	quiet  = 4 // modules around the code (ISO/IEC 18004 section 6.3.8)
)

// ErrTooLong is returned if a text is too long for a QR code.
var ErrTooLong = errors.New("totp: too long for a QR code")

// SVG returns a QR code of text as an SVG document. The client library puts "data:image/svg+xml;utf-8," before the
// document, so it contains no "#" and no "%", which have a meaning in URLs.
func SVG(text string) (string, error) {
	code, err := encode(text)
	if err != nil {
		return "", err
	}
	size := (code.Size + 2*quiet) * module
	var b strings.Builder
	b.Grow(64 * code.Size * code.Size / 4)
	fmt.Fprintf(&b, "<?xml version=\"1.0\"?>\n<svg width=\"%d\" height=\"%d\" xmlns=\"http://www.w3.org/2000/svg\">\n",
		size, size)
	fmt.Fprintf(&b, "<rect x=\"0\" y=\"0\" width=\"%d\" height=\"%d\" style=\"fill:white;stroke:none\"/>\n", size, size)
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			from := x
			for x < code.Size && code.Black(x, y) {
				x++
			}
			if x > from { // adjacent black modules are one rectangle
				fmt.Fprintf(&b,
					"<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" style=\"fill:black;stroke:none\"/>\n",
					(from+quiet)*module, (y+quiet)*module, (x-from)*module, module)
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// encode returns a QR code of text, with the highest level of error correction at which the text fits.
func encode(text string) (*qr.Code, error) {
	for _, level := range []qr.Level{qr.H, qr.Q, qr.M, qr.L} {
		if code, err := qr.Encode(text, level); err == nil {
			return code, nil
		}
	}
	return nil, ErrTooLong
}
