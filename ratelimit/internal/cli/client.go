package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gatehouse/ratelimit/internal/grpctls"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/shared/certs"
)

// client queries a running daemon once: exit 0 with an answer, whatever it says, 1 without
// one, 2 on bad flags.
func client(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ratelimit client", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("dial_string", "localhost:8081", "server to ask, host:port")
	domain := flags.String("domain", "", "rate limit `domain`")
	var descriptors descriptorsFlag
	flags.Var(&descriptors, "descriptors", "one descriptor, `key=value,key=value`; repeat for more")
	useTLS := flags.Bool("grpc-use-tls", false, "speak TLS")
	var files certs.Files
	flags.StringVar(&files.CA, "grpc-server-ca-file", "",
		"PEM `file` of roots for the server's certificate, beside the system's")
	flags.StringVar(&files.Cert, "grpc-cert-file", "", "PEM `file` of a client certificate")
	flags.StringVar(&files.Key, "grpc-key-file", "", "PEM `file` of its key")
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "ratelimit client: %q is no flag\n", flags.Arg(0))
		return exitUsage
	}
	flags.VisitAll(func(f *flag.Flag) { fmt.Fprintf(stdout, "Flag: --%s=%q\n", f.Name, f.Value) })

	protection := insecure.NewCredentials()
	if *useTLS {
		files.SystemRoots = true
		store, err := certs.Open(files, nil)
		if err != nil {
			fmt.Fprintf(stderr, "ratelimit client: %v\n", err)
			return exitUsage
		}
		defer store.Close()
		protection = grpctls.Client(store)
	} else if files != (certs.Files{}) {
		fmt.Fprintln(stderr, "ratelimit client: certificate files have no effect without -grpc-use-tls")
	}
	conn, err := grpc.NewClient(*address, grpc.WithTransportCredentials(protection))
	if err != nil {
		fmt.Fprintf(stdout, "request error: %v\n", err)
		return exitFailed
	}
	defer conn.Close()
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &pb.RateLimitRequest{
		Domain: *domain, Descriptors: descriptors, HitsAddend: 1,
	})
	if err != nil {
		fmt.Fprintf(stdout, "request error: %v\n", err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "response: %v\n", answer)
	return exitOK
}

// descriptorsFlag collects -descriptors.
type descriptorsFlag []*ratelimitpb.RateLimitDescriptor

// String is the form that the replaced service's client prints.
func (d *descriptorsFlag) String() string {
	var b strings.Builder
	for _, descriptor := range *d {
		entries := make([]string, 0, len(descriptor.Entries))
		for _, e := range descriptor.Entries {
			entries = append(entries, fmt.Sprintf("<key=%s, value=%s>", e.Key, e.Value))
		}
		fmt.Fprintf(&b, "[ %s ] ", strings.Join(entries, "  "))
	}
	return b.String()
}

func (d *descriptorsFlag) Set(text string) error {
	entries, err := server.ParseDescriptor(text)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return errors.New("a descriptor without entries; want key=value,key=value")
	}
	descriptor := &ratelimitpb.RateLimitDescriptor{}
	for _, e := range entries {
		descriptor.Entries = append(descriptor.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	*d = append(*d, descriptor)
	return nil
}

// flagExit is the exit status after FlagSet.Parse has failed and said why.
func flagExit(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	return exitUsage
}
