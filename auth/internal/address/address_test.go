package address_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"gatehouse/auth/internal/address"
)

func TestEmail(t *testing.T) {
	f := func(in, want string, wantErr error) {
		t.Helper()
		got, err := address.Email(in)
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("Email(%q) = %q, %v; want %q, %v", in, got, err, want, wantErr)
		}
	}
	f("Mia@Example.ORG", "mia@example.org", nil)
	f("a@b", "a@b", nil)
	f("a+label.x@example.org", "a+label.x@example.org", nil)
	f(".!#$%&'*+/=?^_`{|}~-@a-b.c1", ".!#$%&'*+/=?^_`{|}~-@a-b.c1", nil)
	f("a@"+strings.Repeat("l", 63), "a@"+strings.Repeat("l", 63), nil)
	f(strings.Repeat("a", 253)+"@b", strings.Repeat("a", 253)+"@b", nil)
	f("", "", address.ErrNoEmail)
	f(strings.Repeat("a", 254)+"@b", "", address.ErrLongEmail)
	for _, bad := range []string{
		"a", "@b", "a@", "a@@b", "a@b@c", " a@b", "a@b ", "a b@c", "a@b c", "a@.b", "a@b.", "a@b..c", "a@-b", "a@b-",
		"a@b_c",
		"a@[192.0.2.1]", `"a"@b`, "Mia <a@b>", "(x)a@b", "a@b\r\nBcc: c@d", "a\x00@b", "a,b@c", "a;b@c", "a:b@c",
		`a\b@c`,
		"müller@b", "a@bücher.example", "a@ｂ", "a@" + strings.Repeat("l", 64), "a\t@b", "a@b/c", "a@b:25", "a@b%c",
	} {
		f(bad, "", address.ErrEmailFormat)
	}
}

func TestPhone(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		got, err := address.Phone(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("Phone(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	f("+49 151 1234 5678", "4915112345678")
	f("12", "12")
	f("123456789012345", "123456789012345")
	for _, bad := range []string{"", "+", "1", "0123", "+0123", "1234567890123456", "++12", "1+2", "12a", "1-2", "1\t2",
		"12\n", "１２３"} {
		f(bad, "")
	}
}

var (
	emailForm = regexp.MustCompile("^[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$")
	phoneForm = regexp.MustCompile(`^[1-9][0-9]{1,14}$`)
)

// The grammar of docs/accounts.md#addresses, written down a second time.
func FuzzEmail(f *testing.F) {
	for _, seed := range []string{"a@b", "Mia@Example.org", "a@b-", "a@@b", "a@b\n", "a@b.c.d",
		strings.Repeat("a", 255) + "@b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := address.Email(in)
		if want := len(in) <= 255 && emailForm.MatchString(in) && !strings.HasSuffix(in, "\n"); want != (err == nil) {
			t.Fatalf("Email(%q) = %q, %v", in, got, err)
		}
		if again, err2 := address.Email(got); err == nil && (again != got || err2 != nil || got != address.Fold(in)) {
			t.Fatalf("Email(%q) = %q, and again %q, %v", in, got, again, err2)
		}
	})
}

func FuzzPhone(f *testing.F) {
	for _, seed := range []string{"+49 151", "1", "0", "123456789012345", "1234567890123456", "12\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := address.Phone(in)
		if want := phoneForm.MatchString(address.FoldPhone(in)); want != (err == nil) {
			t.Fatalf("Phone(%q) = %q, %v", in, got, err)
		}
		if again, err2 := address.Phone(got); err == nil && (again != got || err2 != nil) {
			t.Fatalf("Phone(%q) = %q, and again %q, %v", in, got, again, err2)
		}
	})
}
