// Copyright the sax authors. SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sort"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "sax/proto/admin"
)

const resetPeriod = time.Second

// addressSet is a client's copy of the addresses of a model's servers.
type addressSet map[string]bool

// apply returns the set after a result: a full set replaces it, then changes follow in order.
func (s addressSet) apply(result *adminpb.WatchResult) addressSet {
	if result.GetHasFullset() {
		s = addressSet{}
		for _, address := range result.GetValues() {
			s[address] = true
		}
	}
	for _, change := range result.GetChangelog() {
		switch kind := change.GetKind().(type) {
		case *adminpb.WatchResult_Mutation_Addition:
			s[kind.Addition] = true
		case *adminpb.WatchResult_Mutation_Deletion:
			delete(s, kind.Deletion)
		}
	}
	return s
}

func (s addressSet) sorted() []string {
	all := []string{}
	for address := range s {
		all = append(all, address)
	}
	sort.Strings(all)
	return all
}

// watch asks for changes from where the last reply ended, and shows each reply with the set after
// it, until `see` returns false. It ends with NotFound when the model is unpublished; after any
// other error it begins again.
func watch(
	ctx context.Context, admin *cellAdmin, model string,
	see func(*adminpb.WatchLocResponse, addressSet) bool,
) error {
	set, request := addressSet{}, &adminpb.WatchLocRequest{ModelId: model}
	for {
		var reply *adminpb.WatchLocResponse
		err := admin.call(ctx, func(client adminpb.AdminClient) (err error) {
			reply, err = client.WatchLoc(ctx, request)
			return err
		})
		if status.Code(err) == codes.NotFound || ctx.Err() != nil {
			return err
		}
		if err != nil {
			request.AdminServerId, request.Seqno = "", 0
			time.Sleep(resetPeriod)
			continue
		}
		set = set.apply(reply.GetResult())
		if !see(reply, set) {
			return nil
		}
		request.AdminServerId = reply.GetAdminServerId()
		request.Seqno = reply.GetResult().GetNextSeqno()
	}
}

// findServer waits for a server of the model, and returns the first by address.
func findServer(ctx context.Context, admin *cellAdmin, model string) (address string, err error) {
	err = watch(ctx, admin, model, func(_ *adminpb.WatchLocResponse, set addressSet) bool {
		if len(set) > 0 {
			address = set.sorted()[0]
		}
		return address == ""
	})
	return address, err
}
