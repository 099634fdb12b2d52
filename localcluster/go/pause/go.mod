// The pause container of the local cluster: no image can be counted on to be pullable.
module moerl.dev/localcluster/pause

go 1.24.0
